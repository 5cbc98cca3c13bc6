"""FedAvg against closed forms on quadratic clients, gradient descent, and the traps of published implementations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from quadratics import ENGINES, scalars, vectors
from scipy.optimize import minimize
from torch import nn

from archipel import SGD, FedAvg, Federation, Sample, classification, fit
from archipel.core import keys
from archipel.core.trees import flatten, leaves
from archipel.data import Client
from archipel.engines import Loop, Wire
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation


def limit(A, a, weights, lr, steps):
    """Where averaging ends. E full-batch steps take client k from θ to a + (I − ηA)^E (θ − a), so at the fixed point
    Σ ρ N (θ − a) = 0 with N = I − (I − ηA)^E.
    """
    A, a, weights = (np.asarray(values, dtype=float) for values in (A, a, weights))
    one = np.eye(A.shape[-1])
    N = np.stack([one - np.linalg.matrix_power(one - lr * matrix, steps) for matrix in A])
    return np.linalg.solve(np.einsum("k,kij->ij", weights, N), np.einsum("k,kij,kj->i", weights, N, a))


def end(federation, rounds, d=1, **settings):
    fitting = {name: settings.pop(name) for name in ("cohort", "answers") if name in settings}
    fitting["setting"] = Setting(engine=settings.pop("engine", "auto"))
    weights = {"weights": settings.pop("weights")} if "weights" in settings else {}
    algorithm = FedAvg(Quadratic(d), SGD(batch=None, **settings), **weights)
    return fit(algorithm, federation, rounds=rounds, **fitting).server["model"]["theta"].numpy()


def test_the_quadratic_is_the_one_whose_gradient_is_known():
    A, a = vectors()
    theta = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    task = Quadratic(3)
    for client, matrix, minimum in zip(quadratic_federation(A, a).clients, A, a, strict=True):
        value = task.loss({"theta": theta}, client.train)[0].sum()
        torch.testing.assert_close(torch.autograd.grad(value, theta)[0], matrix @ (theta - minimum).detach())
        assert float(task.loss({"theta": minimum}, client.train)[0]) == 0
        assert torch.equal(task.predict({"theta": minimum}, client.train["x"]), minimum[None])
    assert task.init(keys.key(0))["theta"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_scalar_clients_meet_at_four_fifths(engine):
    theta = end(scalars([1.0, 4.0], [0.0, 1.0]), 100, lr=0.2, steps=1, engine=ENGINES[engine])
    # contraction 1 − 0.2 · 2.5 a round: 0.5^100 is below float64's rounding
    assert theta == pytest.approx(0.8, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("steps", "value", "rounds"), [(1, 2.0, 120), (5, 1.716028, 30), (50, 1.335629, 10)])
def test_three_scalar_clients_end_where_local_steps_pull_them(engine, steps, value, rounds):
    A, a = [1.0, 2.0, 4.0], [0.0, 1.0, 3.0]
    theta = end(scalars(A, a), rounds, lr=0.1, steps=steps, engine=ENGINES[engine])
    expected = limit(np.reshape(A, (3, 1, 1)), np.reshape(a, (3, 1)), [1, 1, 1], 0.1, steps)
    assert expected[0] == pytest.approx(value, abs=1e-6)  # docs/methods/averaging.md
    # The slowest contraction is 1 − 0.1 · 7/3 a round: (0.767)^120 is 1e-14.
    assert theta == pytest.approx(expected, abs=1e-9)


def test_the_wire_ends_where_the_loop_ends():
    federation = scalars([1.0, 2.0, 4.0], [0.0, 1.0, 3.0])
    loop, wire = (end(federation, 10, lr=0.1, steps=5, engine=engine) for engine in (Loop, Wire))
    assert np.array_equal(loop, wire)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_vector_clients_of_unequal_weight(engine, weights):
    (A, a), sizes = vectors(), [1, 5, 2, 9]
    federation = quadratic_federation(A, a, sizes)
    # eigenvalues above 1/2: a contraction by 0.9^4 a round at least
    theta = end(federation, 60, 3, lr=0.2, steps=4, weights=weights, engine=ENGINES[engine])
    expected = limit(A, a, sizes if weights == "examples" else [1] * 4, 0.2, 4)
    assert theta == pytest.approx(expected, abs=1e-9)
    # The other weighting, and the common minimum, lie elsewhere: the test could tell.
    assert abs(expected - limit(A, a, [1] * 4 if weights == "examples" else sizes, 0.2, 4)).max() > 1e-3
    assert abs(expected - limit(A, a, sizes if weights == "examples" else [1] * 4, 0.2, 1)).max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_partial_participation_is_each_cohorts_own_map(engine):
    (A, a), sizes, cohort, rounds = vectors(), [1, 5, 2, 9], Sample(count=2), 6
    federation = quadratic_federation(A, a, sizes)
    theta = end(federation, rounds, 3, lr=0.1, steps=4, cohort=cohort, engine=ENGINES[engine])
    expected, shrink = np.zeros(3), np.eye(3) - 0.1 * A.numpy()
    for round in range(rounds):
        ids = cohort.draw(federation.sizes, keys.fold(keys.key(0), "cohort", round)).tolist()
        moved = [a[k].numpy() + np.linalg.matrix_power(shrink[k], 4) @ (expected - a[k].numpy()) for k in ids]
        expected = np.average(moved, axis=0, weights=[sizes[k] for k in ids])
    assert theta == pytest.approx(expected, abs=1e-12)


def test_replies_that_are_always_lost_leave_the_others_limit():
    (A, a), sizes = vectors(), [1, 5, 2, 9]
    theta = end(
        quadratic_federation(A, a, sizes), 60, 3, lr=0.2, steps=4, answers=lambda round, client: client in (0, 3)
    )
    assert theta == pytest.approx(limit(A[[0, 3]], a[[0, 3]], [1, 9], 0.2, 4), abs=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_momentum_kept_at_the_clients_is_heavy_ball_from_where_it_was(engine):
    A, a, lr, mu = [1.0, 2.0, 4.0], [0.0, 1.0, 3.0], 0.1, 0.6
    for kept in (True, False):
        theta = end(scalars(A, a), 4, lr=lr, steps=2, momentum=mu, keep_momentum=kept, engine=ENGINES[engine])
        expected, velocity = 0.0, np.zeros(3)
        for _ in range(4):
            local = np.full(3, expected)
            velocity = velocity if kept else np.zeros(3)
            for _ in range(2):
                velocity = mu * velocity + np.array(A) * (local - a)
                local = local - lr * velocity
            expected = local.mean()
        assert theta == pytest.approx(expected, abs=1e-14)


def test_a_cosine_schedule_runs_over_the_rounds():
    theta = end(scalars([1.0], [1.0]), 5, lr=0.4, steps=1, schedule="cosine")
    # 1 − θ shrinks by 1 − η_t with η_t = 0.2 (1 + cos(π t/5))
    assert 1 - theta == pytest.approx(np.prod(1 - 0.2 * (1 + np.cos(np.pi * np.arange(5) / 5))), rel=1e-12)


@pytest.fixture(scope="module")
def logistic():
    """A convex problem: a linear classifier on one client and on the same data cut in three uneven pieces."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 2, generator=generator)
    y = (x @ torch.tensor([1.0, -2.0]) + torch.randn(60, generator=generator) > 0).long()
    whole = Federation.from_arrays([(x, y)], test=0.0)
    pieces = tuple(
        Client(f"piece-{i}", {"x": x[rows], "y": y[rows]}, {"x": x[:0], "y": y[:0]})
        for i, rows in enumerate((slice(0, 10), slice(10, 25), slice(25, 60)))
    )
    return x, y, whole, Federation("pieces", pieces, whole.inputs, whole.classes)


def test_one_client_with_full_batches_is_gradient_descent(logistic):
    x, y, whole, pieces = logistic
    task = classification(nn.Identity(), whole)
    head = nn.Linear(2, 2)
    start = task.init(keys.fold(keys.key(0), "server"))["head"]
    with torch.no_grad():
        head.weight.copy_(start["weight"])
        head.bias.copy_(start["bias"])
    optimiser = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(head(whole.inputs.normalise(x)), y).backward()
        optimiser.step()
    for federation in (whole, pieces):
        # One step a round: the mean of the pieces' gradients, weighted by examples, is the gradient of the whole.
        for rounds, steps in ((20, 1), (4, 5)) if federation is whole else ((20, 1),):
            run = fit(FedAvg(task, SGD(lr=0.5, steps=steps, batch=None)), federation, rounds=rounds)
            # 20 float32 steps on numbers around 1
            found = run.server["model"]["head"]["weight"]
            torch.testing.assert_close(found, head.weight.detach(), rtol=1e-5, atol=1e-5)


def test_uneven_pieces_find_the_minimum_of_the_whole(logistic):
    x, y, _, pieces = logistic
    z, labels = pieces.inputs.normalise(x).numpy(), y.numpy()

    def mean_loss(parameters):
        logits = z @ parameters[:4].reshape(2, 2).T + parameters[4:]
        return np.mean(np.logaddexp(*logits.T) - logits[np.arange(60), labels])

    best = minimize(mean_loss, np.zeros(6)).fun
    run = fit(FedAvg(classification(nn.Identity(), pieces), SGD(lr=3.0, steps=1, batch=None)), pieces, rounds=150)
    assert run.history[-1]["loss"] == pytest.approx(best, abs=1e-4)  # float32, and linear convergence
    assert run.history[-1]["loss"] >= best - 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_are_examples_held_and_not_examples_drawn(engine):
    # n = (1, 3), exact Newton steps to (0, 4), one example a step: 3, not 2.
    algorithm = FedAvg(Quadratic(), SGD(lr=1.0, steps=1, batch=1))
    run = fit(algorithm, scalars([1.0, 1.0], [0.0, 4.0], [1, 3]), rounds=1, setting=Setting(engine=ENGINES[engine]))
    assert run.server["model"]["theta"].item() == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_smaller_than_a_batch_trains_on_all_it_has(engine):
    # Three examples with minima 1, 2, 6 and a batch of ten: one exact step to their mean.
    a = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64)
    one = {"x": torch.ones(3, 1, 1, dtype=torch.float64), "y": a}
    many = {"x": torch.ones(20, 1, 1, dtype=torch.float64), "y": torch.full((20, 1), 3.0, dtype=torch.float64)}
    small, large = (
        Client(name, columns, {n: c[:0] for n, c in columns.items()}) for name, columns in (("s", one), ("l", many))
    )
    federation = Federation("small and large", (small, large), scalars([1.0], [0.0]).inputs, None)
    algorithm = FedAvg(Quadratic(), SGD(lr=1.0, epochs=1, batch=10))
    run = fit(
        algorithm,
        federation,
        rounds=1,
        setting=Setting(engine=ENGINES[engine]),
        answers=lambda round, client: client == 0,
    )
    assert run.server["model"]["theta"].item() == pytest.approx(3, abs=1e-15)


def test_an_empty_client_is_refused_by_name():
    columns = scalars([1.0], [0.0]).clients[0].train
    empty = {name: column[:0] for name, column in columns.items()}
    with pytest.raises(ValueError, match=r"client 'b' has no training examples\. Leave it out"):
        Federation("x", (Client("a", columns, empty), Client("b", empty, columns)), scalars([1.0], [0.0]).inputs, None)
    with pytest.raises(ValueError, match=r"sizes of at least 1; given .* and sizes"):
        scalars([1.0, 2.0], [0.0, 0.0], [1, 0])


class Mixed(nn.Module):
    """Buffers of other kinds than float32, which training counts up."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        for name, dtype in (("n", torch.int64), ("d", torch.float64), ("h", torch.bfloat16)):
            self.register_buffer(name, torch.tensor(0, dtype=dtype))

    def forward(self, x):
        if self.training:
            for buffer in (self.n, self.d, self.h):
                buffer += 1
        return self.linear(x)


@pytest.mark.parametrize("engine", ENGINES)
def test_buffers_of_any_dtype_are_averaged_in_it(uneven, engine):
    algorithm = FedAvg(classification(Mixed(), uneven), SGD(lr=0.1, epochs=1, batch=4))
    buffers = fit(algorithm, uneven, rounds=1, setting=Setting(engine=ENGINES[engine])).server["model"]["buffers"]
    steps = -(-uneven.sizes // 4)  # a pass of each client, rounded up
    mean = float((uneven.sizes * steps).double().sum() / uneven.sizes.sum())
    assert {name: (t.dtype, t.shape) for name, t in buffers.items()} == {
        "n": (torch.int64, ()),
        "d": (torch.float64, ()),
        "h": (torch.bfloat16, ()),
    }
    assert buffers["n"].item() == round(mean)
    assert buffers["d"].item() == pytest.approx(mean, rel=1e-15)
    assert buffers["h"].item() == torch.tensor(mean, dtype=torch.bfloat16).item()


def test_optimiser_state_between_rounds_is_a_setting(uneven):
    local = SGD(lr=0.1, steps=2, batch=4, momentum=0.9)
    kept, reset = (
        fit(FedAvg(classification(nn.Linear(3, 4), uneven), replace(local, keep_momentum=keep)), uneven, rounds=2)
        for keep in (True, False)
    )
    assert [list(client) for client in kept.clients] == [["velocity"]] * 4
    assert [leaves(client) for client in reset.clients] == [[]] * 4
    assert not torch.equal(flatten(kept.server)["model/head/weight"], flatten(reset.server)["model/head/weight"])
