"""Local SGD against torch.optim.SGD on the same minibatches, looped and under vmap."""

import pytest
import torch

from archipel import SGD, FedAvg, classification, fit
from archipel.core import keys
from archipel.core.examples import Examples
from archipel.core.trees import add, tree_map
from archipel.engines.setting import Setting
from archipel.learning.compiling import ForwardOptions
from archipel.learning.sgd import proximal

SIZES = (3, 10, 7)
SETTINGS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "decay": {"weight_decay": 0.1},
    "clip": {"clip": 0.5},
    "all": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05, "clip": 0.7},
}
RUNS = {"steps": {"steps": 6, "batch": 4}, "epochs": {"epochs": 2, "batch": 4}, "full": {"steps": 4, "batch": None}}
# Both sides compute in float64: what differs is the order of sums. torch's clip_grad_norm_ adds 1e-6 to the norm, which
# is above 0.5 where it clips, so the clipped gradient differs by 2e-6 of itself at most in each of ten steps.
TOLERANCE = {"clip": 2e-5, "all": 2e-5}


def client(n, seed=0):
    generator = torch.Generator().manual_seed(seed + n)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return {"x": x, "y": 2 * torch.randn(n, generator=generator, dtype=torch.float64) + 3}


def loss(params, batch):
    return 0.5 * (batch["x"] @ params["w"] + params["b"] - batch["y"]).square(), {}


def start():
    return {"w": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), "b": torch.tensor(0.3, dtype=torch.float64)}


def torch_sgd(columns, solver, key, rate, velocity=None, extra=None):
    """The same run by torch.optim.SGD, torch's clip_grad_norm_ and autograd; ``extra`` is added to the loss."""
    examples = Examples.of(columns)
    params = {name: torch.nn.Parameter(value.clone()) for name, value in start().items()}
    optimiser = torch.optim.SGD(
        params.values(),
        lr=rate,
        momentum=solver.momentum,
        nesterov=solver.nesterov,
        weight_decay=solver.weight_decay,
    )
    if velocity is not None:
        for name, param in params.items():
            optimiser.state[param]["momentum_buffer"] = velocity[name].clone()
    plan, losses = solver.plan(examples, key), []
    for index, mask in zip(plan.index, plan.mask, strict=True):
        optimiser.zero_grad()
        mean = loss(params, examples.take(index[mask]))[0].mean()
        (mean if extra is None else mean + extra(params)).backward()
        if solver.clip is not None:
            torch.nn.utils.clip_grad_norm_(params.values(), solver.clip)
        optimiser.step()
        losses.append(mean.item())
    momentum = {name: optimiser.state[p].get("momentum_buffer") for name, p in params.items()}
    return {name: p.detach() for name, p in params.items()}, momentum, sum(losses) / len(losses)


def in_a_loop(solver, key, rate, velocity=None, shift=None, project=None):
    for i, n in enumerate(SIZES):
        yield solver.minimise(loss, start(), Examples.of(client(n)), keys.fold(key, i), rate, velocity, shift, project)


def under_vmap(solver, key, rate, velocity=None, shift=None, project=None, sizes=SIZES):
    longest = max(sizes)
    columns = [client(n) for n in sizes]
    # Padding is NaN: nothing of it may reach the result.
    padded = {
        name: torch.stack(
            [torch.cat([c[name], torch.full((longest - len(c["y"]), *c[name].shape[1:]), torch.nan)]) for c in columns]
        )
        for name in ("x", "y")
    }
    examples = Examples(padded, torch.tensor(sizes), min(sizes))

    def run(data, key):
        end = solver.minimise(loss, start(), data, key, rate, velocity, shift, project)
        return end.params, end.velocity, end.loss

    results = torch.func.vmap(run)(examples, keys.fold(key, torch.arange(len(sizes))))
    for i in range(len(sizes)):
        params, momentum, mean = results
        yield type(
            "Row",
            (),
            {
                "params": {name: p[i] for name, p in params.items()},
                "velocity": {name: v[i] for name, v in momentum.items()},
                "loss": mean[i],
            },
        )


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_sgd_is_torchs(how, run, setting):
    solver = SGD(lr=0.05, **RUNS[run], **SETTINGS[setting])
    key, rate = keys.key(3), solver.rate(0, 1)
    tolerance = TOLERANCE.get(setting, 1e-12)
    for i, end in enumerate(how(solver, key, rate)):
        params, momentum, mean = torch_sgd(client(SIZES[i]), solver, keys.fold(key, i), float(rate))
        for name, value in params.items():
            torch.testing.assert_close(end.params[name], value, rtol=tolerance, atol=tolerance)
            if solver.momentum:
                torch.testing.assert_close(end.velocity[name], momentum[name], rtol=tolerance, atol=tolerance)
        assert float(end.loss) == pytest.approx(mean, rel=tolerance)


# Of one size nothing is masked; of these nothing in the first two of three steps of a pass; of SIZES every step may be.
@pytest.mark.parametrize("sizes", [(7, 7, 7), (9, 10, 12)])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("setting", ["plain", "all"])
def test_batches_that_agree_between_clients_need_no_mask(sizes, run, setting):
    solver = SGD(lr=0.05, **RUNS[run], **SETTINGS[setting])
    key, rate = keys.key(3), solver.rate(0, 1)
    tolerance = TOLERANCE.get(setting, 1e-12)
    for i, end in enumerate(under_vmap(solver, key, rate, sizes=sizes)):
        params, _, mean = torch_sgd(client(sizes[i]), solver, keys.fold(key, i), float(rate))
        for name, value in params.items():
            torch.testing.assert_close(end.params[name], value, rtol=tolerance, atol=tolerance)
        assert float(end.loss) == pytest.approx(mean, rel=tolerance)


def test_every_client_of_a_batch_may_have_a_rate_of_its_own():
    solver, key = SGD(lr=0.05, steps=6, batch=4, momentum=0.9), keys.key(3)
    rates = torch.tensor([0.0, 0.05, 0.02], dtype=torch.float64)
    stacked = {name: torch.stack([client(7, seed)[name] for seed in range(3)]) for name in ("x", "y")}

    def run(data, rate):
        return solver.minimise(loss, start(), data, key, rate).params

    ends = torch.func.vmap(run)(Examples(stacked, torch.full((3,), 7), 7), rates)
    for i, rate in enumerate(rates):
        params, _, _ = torch_sgd(client(7, i), solver, key, float(rate))
        for name, value in params.items():
            torch.testing.assert_close(ends[name][i], value, rtol=1e-12, atol=1e-12)


def test_a_gradient_that_is_no_number_is_no_end_of_a_run():
    solver = SGD(lr=0.05, steps=3, batch=None, tolerance=1.0)
    data = Examples.of(client(5) | {"y": torch.full((5,), torch.nan, dtype=torch.float64)})
    assert solver.minimise(loss, start(), data, keys.key(0), solver.rate(0, 1)).params["w"].isnan().all()


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_mixed_precision_sees_the_parameters_move(how):
    # A minimum of 0 in w = 1 for y = Σ x: with casts kept from the first step the run would go by it and away.
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    columns, params, solver = {"x": x, "y": x.sum(1)}, {"w": torch.zeros(8, 1)}, SGD(lr=0.05, steps=300, batch=None)

    def squares(params, batch):
        return ((batch["x"] @ params["w"])[:, 0].float() - batch["y"]).square(), {}

    def run(data):
        return solver.minimise(squares, params, data, keys.key(0), solver.rate(0, 1)).params["w"]

    stacked = Examples({name: column[None] for name, column in columns.items()}, torch.tensor([40]), 40)
    with torch.autocast("cpu", torch.bfloat16):
        end = run(Examples.of(columns)) if how is in_a_loop else torch.func.vmap(run)(stacked)[0]
    # bfloat16 has 8 bits: a weight is known to 2⁻⁸ of itself, and products of eight to a few times that
    torch.testing.assert_close(end, torch.ones(8, 1), rtol=0, atol=4 * 2**-8)


def test_a_run_inside_two_transformations_is_refused():
    solver, key = SGD(steps=1), keys.key(0)

    def run(x):
        return solver.minimise(lambda params, b: (b["x"] * params["b"], {}), start(), Examples.of({"x": x}), key, x[0])

    with pytest.raises(NotImplementedError, match=r"inside one torch\.func\.vmap, but not inside several"):
        torch.func.vmap(torch.func.vmap(run))(torch.ones(2, 2, 3))
    with pytest.raises(NotImplementedError, match=r"inside one torch\.func\.vmap"):
        torch.func.grad(lambda x: run(x).loss)(torch.ones(3))


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_clipping_clips_in_these_tests(how):
    # Otherwise the test above would say nothing of it.
    key = keys.key(3)
    settings = [SGD(lr=0.05, steps=1, batch=None, clip=clip) for clip in (0.5, None)]
    for clipped, free in zip(*(list(how(solver, key, solver.rate(0, 1))) for solver in settings), strict=True):
        moves = [
            torch.cat([(end.params[name] - value).reshape(-1) for name, value in start().items()])
            for end in (clipped, free)
        ]
        gradient = torch.nn.Parameter(moves[1] / 0.05)
        gradient.grad = gradient.detach().clone()
        torch.nn.utils.clip_grad_norm_([gradient], 0.5)
        assert float(moves[0].norm()) == pytest.approx(0.05 * float(gradient.grad.norm()), rel=1e-12)
        assert float(moves[1].norm()) > 0.05 * 0.5
        torch.testing.assert_close(moves[0] / moves[0].norm(), moves[1] / moves[1].norm())


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_momentum_goes_on_from_the_velocity_given(how):
    solver = SGD(lr=0.05, steps=5, batch=4, momentum=0.9, keep_momentum=True)
    key, rate = keys.key(4), solver.rate(0, 1)
    # in another order than the parameters, as a tree may come back from elsewhere
    velocity = {"b": torch.tensor(2.0, dtype=torch.float64), "w": torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)}
    for i, end in enumerate(how(solver, key, rate, velocity)):
        params, momentum, _ = torch_sgd(client(SIZES[i]), solver, keys.fold(key, i), float(rate), velocity)
        for name in params:
            torch.testing.assert_close(end.params[name], params[name], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(end.velocity[name], momentum[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("setting", ["plain", "momentum", "nesterov", "decay"])
def test_a_shift_is_the_gradient_of_a_term_of_the_objective(how, run, setting):
    # ½ μ ‖θ − c‖² − ⟨h, θ⟩ by autograd, against μ (θ − c) − h
    solver, mu = SGD(lr=0.05, **RUNS[run], **SETTINGS[setting]), 0.7
    double = {"dtype": torch.float64}
    centre = {"b": torch.tensor(-2.0, **double), "w": torch.tensor([3.0, 0.0, 1.0], **double)}
    h = {"w": torch.tensor([0.1, -0.5, 2.0], **double), "b": torch.tensor(0.4, **double)}

    def term(params):
        return sum(mu / 2 * (params[n] - centre[n]).square().sum() - (h[n] * params[n]).sum() for n in params)

    def shift(params):
        return add(proximal(mu, centre | {"buffers": {"count": torch.tensor(3)}})(params), h, -1.0)

    key, rate = keys.key(3), solver.rate(0, 1)
    without = list(how(solver, key, rate))
    for i, end in enumerate(how(solver, key, rate, shift=shift)):
        params, momentum, mean = torch_sgd(client(SIZES[i]), solver, keys.fold(key, i), float(rate), extra=term)
        for name, value in params.items():
            torch.testing.assert_close(end.params[name], value, rtol=1e-12, atol=1e-12)
            assert not torch.allclose(end.params[name], without[i].params[name])
            if solver.momentum:
                torch.testing.assert_close(end.velocity[name], momentum[name], rtol=1e-12, atol=1e-12)
        assert float(end.loss) == pytest.approx(mean, rel=1e-12)  # of the data alone


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_clipping_is_for_the_data_and_not_for_the_shift(how):
    key, large = keys.key(3), {"w": torch.full((3,), 1e3, dtype=torch.float64), "b": torch.tensor(-1e3).double()}
    solver = SGD(lr=0.05, steps=1, batch=None, clip=0.5)
    shifted = how(solver, key, solver.rate(0, 1), shift=lambda params: large)
    for one, other in zip(shifted, how(solver, key, solver.rate(0, 1)), strict=True):
        for name in large:
            torch.testing.assert_close(one.params[name], other.params[name] - 0.05 * large[name])


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_a_shift_of_zero_changes_no_bit(how):
    solver = SGD(lr=0.05, steps=6, batch=4, momentum=0.9)
    key, rate = keys.key(3), solver.rate(0, 1)
    nothing = how(solver, key, rate, shift=lambda params: tree_map(torch.zeros_like, params))
    for one, other in zip(nothing, how(solver, key, rate), strict=True):
        assert all(torch.equal(one.params[name], other.params[name]) for name in start())


def test_trees_of_a_run_pair_by_name_and_not_by_position():
    solver, examples = SGD(lr=0.1, steps=3, batch=4, momentum=0.9), Examples.of(client(10))
    velocity = tree_map(lambda p: p + 1, start())

    def swapped(tree):
        return dict(reversed(tree.items()))

    def ends(order):
        end = solver.minimise(
            loss,
            start(),
            examples,
            keys.key(0),
            solver.rate(0, 1),
            order(velocity),
            shift=lambda params: order(tree_map(lambda p: 0.3 * p, params)),
            project=lambda params: order(tree_map(lambda p: 0.9 * p, params)),
        )
        return end.params["w"], end.params["b"]

    assert all(map(torch.equal, ends(swapped), ends(dict)))


def test_a_shift_may_hand_out_the_parameters_themselves():
    # θ ← θ − 1 · (g + θ): the step must not write into what it is still reading.
    solver = SGD(lr=1.0, steps=2, batch=None)
    data = Examples.of({"x": torch.ones(2, 1)})
    end = solver.minimise(
        lambda params, batch: (batch["x"] @ params["a"], {}),
        {"a": torch.tensor([5.0])},
        data,
        keys.key(0),
        solver.rate(0, 1),
        shift=lambda params: params,
    )
    assert end.params["a"].tolist() == [-1.0]


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_a_tolerance_ends_a_run_where_the_gradient_is_small(how):
    # ½ mean (x w + b − y)² + ½ ‖θ‖² has its minimum where the normal equations hold.
    key, shift = keys.key(3), lambda params: params
    solver = SGD(lr=0.2, steps=300, batch=None, tolerance=1e-9)
    loose = SGD(lr=0.2, steps=300, batch=None, tolerance=1e-1)
    rate = solver.rate(0, 1)
    ends = zip(how(solver, key, rate, shift=shift), how(loose, key, rate, shift=shift), strict=True)
    for i, (tight, early) in enumerate(ends):
        columns = client(SIZES[i])
        X = torch.cat([columns["x"], torch.ones(SIZES[i], 1, dtype=torch.float64)], 1)
        H, right = X.T @ X / SIZES[i] + torch.eye(4), X.T @ columns["y"] / SIZES[i]
        theta, sizes = torch.cat([start()["w"], start()["b"][None]]), []
        while (g := H @ theta - right).norm() > 0.1:
            sizes.append(0.5 * (X @ theta - columns["y"]).square().mean())
            theta = theta - 0.2 * g
        sizes.append(0.5 * (X @ theta - columns["y"]).square().mean())
        found = torch.cat([early.params["w"], early.params["b"][None]])
        torch.testing.assert_close(found, theta, rtol=1e-12, atol=1e-12)  # the first that is near enough
        assert float(early.loss) == pytest.approx(float(torch.stack(sizes).mean()), rel=1e-12)
        found = torch.cat([tight.params["w"], tight.params["b"][None]])
        torch.testing.assert_close(found, torch.linalg.solve(H, right), rtol=0, atol=2e-9)


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_a_projection_comes_after_every_step(how):
    solver, key = SGD(lr=0.3, steps=4, batch=None, momentum=0.5), keys.key(3)

    def clip(params):
        return params | {"w": params["w"].clamp(-0.4, 0.4)}

    for i, end in enumerate(how(solver, key, solver.rate(0, 1), project=clip)):
        (w, b), velocity, columns = start().values(), [0.0, 0.0], client(SIZES[i])
        for _ in range(4):
            gap = columns["x"] @ w + b - columns["y"]
            g = [(gap[:, None] * columns["x"]).mean(0), gap.mean()]
            velocity = [0.5 * d + s for d, s in zip(velocity, g, strict=True)]
            w, b = (w - 0.3 * velocity[0]).clamp(-0.4, 0.4), b - 0.3 * velocity[1]
        torch.testing.assert_close(end.params["w"], w)
        torch.testing.assert_close(end.params["b"], b)


def test_minibatches_are_those_of_the_run():
    solver, data = SGD(steps=5, batch=4), Examples.of({"x": torch.arange(10.0)[:, None]})
    plan = solver.plan(data, keys.key(1))
    batches = list(solver.minibatches(data, keys.key(1)))
    assert [int(batch.count) for batch in batches] == [4, 4, 2, 4, 4]
    for batch, index, mask in zip(batches, plan.index, plan.mask, strict=True):
        assert batch["x"][batch.mask][:, 0].tolist() == index[mask].tolist()
    doubled = SGD(steps=2, batch=4, augment=lambda x, key: 2 * x).minibatches(data, keys.key(1))
    assert torch.equal(next(doubled)["x"], 2 * batches[0]["x"])


def test_gradients_that_autograd_aliases_are_not_added_to_twice():
    # For a + b autograd hands out one gradient tensor for both.
    solver = SGD(lr=1.0, steps=1, batch=None, weight_decay=0.5, clip=1e9)
    params = {"a": torch.tensor([2.0]), "b": torch.tensor([4.0])}
    data = Examples.of({"x": torch.ones(2, 1)})

    def total(params, batch):
        return (batch["x"] * (params["a"] + params["b"])).sum(1), {}

    end = solver.minimise(total, params, data, keys.key(0), solver.rate(0, 1)).params
    # θ − (1 + θ/2)
    assert end["a"].tolist() == [0.0]
    assert end["b"].tolist() == [1.0]
    assert params["a"].tolist() == [2.0]


def test_what_is_unused_gets_no_gradient_but_decays():
    solver = SGD(lr=0.1, steps=2, batch=None, weight_decay=1.0)
    params = start() | {"idle": torch.ones(2, dtype=torch.float64)}
    end = solver.minimise(loss, params, Examples.of(client(5)), keys.key(0), solver.rate(0, 1)).params
    torch.testing.assert_close(end["idle"], torch.full((2,), 0.9**2, dtype=torch.float64))


def test_cosine_is_torchs_annealing():
    solver = SGD(lr=0.3, steps=1, schedule="cosine")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=40)
    for round in range(40):
        # torch goes by a recursion and we by the formula: 40 steps of rounding
        assert float(solver.rate(round, 40)) == pytest.approx(schedule.get_last_lr()[0], abs=1e-14)
        optimiser.step()
        schedule.step()
    assert {float(SGD(lr=0.3, steps=1).rate(t, 40)) for t in range(40)} == {0.3}


@pytest.mark.parametrize("how", [in_a_loop, under_vmap])
def test_augmentation_is_keyed_by_client_and_step(how):
    seen = []

    def shift(x, key):
        return x + keys.normal(key, *x.shape[1:], dtype=x.dtype)

    def record(x, key):
        seen.append(key)
        return x

    solvers = [SGD(lr=0.05, steps=3, batch=None, augment=augment) for augment in (shift, shift, None, record)]
    rate = solvers[0].rate(0, 1)
    first, again, without, recorded = (
        [end.params["w"].clone() for end in how(solver, keys.key(5), rate)] for solver in solvers
    )
    for i, n in enumerate(SIZES):
        assert torch.equal(first[i], again[i])
        assert not torch.allclose(first[i], without[i])
        assert torch.equal(recorded[i], without[i])
        # by hand: plain gradient descent on shifted inputs
        w, b = start().values()
        columns = client(n)
        for step in range(3):
            x = shift(columns["x"], keys.fold(keys.fold(keys.key(5), i), "augment", step))
            gap = x @ w + b - columns["y"]
            w, b = w - 0.05 * (gap[:, None] * x).mean(0), b - 0.05 * gap.mean()
        torch.testing.assert_close(first[i], w)
    assert len(seen) == 3 * (len(SIZES) if how is in_a_loop else 1)


def test_augmentation_is_for_training_alone(uneven):
    seen = []

    def watch(x, key):
        seen.append(len(x))
        return x

    task = classification(torch.nn.Identity(), uneven)
    fit(
        FedAvg(task, SGD(steps=3, batch=5, augment=watch)),
        uneven,
        rounds=2,
        setting=Setting(engine="loop"),
        evaluate_every=1,
    )
    assert seen.count(5) + sum(n < 5 for n in seen) == len(seen) == 2 * 4 * 3  # rounds, clients, steps


def test_looped_and_batched_report_losses_of_one_dtype():
    solver = SGD(lr=0.05, steps=2, batch=None)
    single = Examples.of({name: column.float() for name, column in client(4).items()})
    params = {name: p.float() for name, p in start().items()}
    looped = solver.minimise(loss, params, single, keys.key(0), solver.rate(0, 1))
    stacked = Examples({n: c[None] for n, c in single.columns.items()}, torch.tensor([4]), 4)
    batched = torch.func.vmap(lambda d: solver.minimise(loss, params, d, keys.key(0), solver.rate(0, 1)).loss)(stacked)
    assert looped.loss.dtype == batched.dtype == torch.float32


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("steps", 0, "steps must be a whole number of at least 1; given 0"),
        ("steps", 1.5, "steps must be a whole number"),
        ("batch", 0, "batch must be a whole number of at least 1; given 0"),
        ("lr", -0.1, "lr must be 0 or above and finite; given -0.1"),
        ("lr", float("nan"), "lr must be 0 or above and finite"),
        ("lr", float("inf"), "lr must be 0 or above and finite"),
        ("momentum", 1.0, r"momentum must lie in \[0, 1\); given 1.0"),
        ("momentum", -0.1, r"momentum must lie in \[0, 1\)"),
        ("nesterov", True, "nesterov needs a momentum above 0"),
        ("keep_momentum", True, "keep_momentum needs a momentum above 0"),
        ("weight_decay", -1.0, "weight_decay must be 0 or above and finite; given -1.0"),
        ("clip", 0.0, "clip must be above 0 and finite, or None"),
        ("clip", float("nan"), "clip must be above 0"),
        ("tolerance", -1.0, "tolerance must be 0 or above and finite, or None; given -1.0"),
        ("schedule", "linear", "schedule must be 'constant' or 'cosine'; given 'linear'"),
        ("epochs", 2, "exactly one of steps and epochs; given steps=3 and epochs=2"),
    ],
)
def test_settings_out_of_range_are_refused_with_what_is_allowed(field, value, message):
    with pytest.raises(ValueError, match=message):
        SGD(**({"steps": 3} | {field: value}))


def test_neither_steps_nor_epochs_is_refused():
    with pytest.raises(ValueError, match="steps=None and epochs=None"):
        SGD(lr=0.1)
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 1; given 0"):
        SGD(epochs=0)


@pytest.mark.parametrize(
    "setting", [{"lr": "0.1"}, {"lr": None}, {"momentum": None}, {"clip": "a"}, {"weight_decay": True}]
)
def test_what_is_no_number_is_refused(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=f"SGD's {name} must be a number; given"):
        SGD(steps=1, **setting)


@pytest.mark.parametrize("memory_format", ["channels_last", "contiguous"])
def test_convolution_weights_lie_as_images_do_within_a_local_run_alone(memory_format):
    start = {"w": torch.randn(4, 3, 3, 3), "b": torch.zeros(4)}
    images = Examples.of({"x": torch.randn(6, 3, 5, 5), "y": torch.zeros(6)})
    seen = []

    def loss(params, batch):
        seen.append(params["w"].is_contiguous(memory_format=torch.channels_last))
        return torch.nn.functional.conv2d(batch["x"], params["w"], params["b"]).square().mean((1, 2, 3)), {}

    solver = SGD(lr=0.1, steps=2, batch=3, momentum=0.9)
    with ForwardOptions(memory_format).activate():
        end = solver.minimise(loss, start, images, keys.key(0), torch.tensor(0.1))
    assert seen == [memory_format == "channels_last"] * 2
    for tree in (start, end.params, end.velocity):
        assert tree["w"].stride() == (27, 9, 3, 1)
