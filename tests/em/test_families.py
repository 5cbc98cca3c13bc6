"""What every family owes to federated EM: linear statistics, T as an argmin, a likelihood that never falls, vmap."""

import numpy as np
import pytest
import torch
from em_cases import CASES, MIXTURES, N, double
from scipy.optimize import minimize

from archipel.core import keys
from archipel.core.trees import add, leaves, scaled, stack, tree_map
from archipel.families.mixture import FLOOR

EVERY = pytest.mark.parametrize("name", CASES)
ALL = torch.ones(N, dtype=torch.bool)


def close(one, other, tolerance):
    """Trees with equal values up to an absolute tolerance."""
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in pairs)


def with_gaps(name, batch):
    """The batch, and for factor models one with missing values."""
    if name not in ("isotropic", "diagonal"):
        return batch
    gone = keys.uniform(keys.key(7), *batch["x"].shape) < 0.3
    return {"x": torch.where(gone, torch.nan, batch["x"])}


@EVERY
def test_statistics_of_parts_make_those_of_the_whole(name):
    case = CASES[name]
    batch = with_gaps(name, case.batch())
    whole = case.family.statistics(case.start, batch, ALL)
    first, rest = (tree_map(lambda t, cut=cut: t[cut], batch) for cut in (slice(13), slice(13, None)))
    parts = [case.family.statistics(case.start, part, ALL[: len(part["x"])]) for part in (first, rest)]
    assert close(whole, add(scaled(parts[0], 13 / N), parts[1], (N - 13) / N), 1e-12)
    masked = case.family.statistics(case.start, batch, torch.arange(N) < 13)
    assert close(masked, parts[0], 1e-12)
    assert all(leaf.dtype == torch.float64 for leaf in leaves(whole))


@EVERY
def test_long_data_go_through_in_pieces(name):
    # Twenty copies of the data have the statistics of one; two pieces at least: 2^18/width rows each
    case = CASES[name]
    batch = with_gaps(name, case.batch())
    width = sum(leaf.numel() for leaf in leaves(case.family.statistics(case.start, batch, ALL)))
    copies = 2**18 // N
    assert copies * N > 2**18 // max(2, width)
    many = tree_map(lambda t: t.repeat(copies, *[1] * (t.dim() - 1)), batch)
    found = case.family.statistics(case.start, many, torch.ones(copies * N, dtype=torch.bool))
    assert close(found, case.family.statistics(case.start, batch, ALL), 1e-11)
    values = case.family.log_likelihood(case.start, many)
    assert torch.allclose(values[-N:], case.family.log_likelihood(case.start, batch), rtol=0, atol=1e-12)


@EVERY
def test_nobody_gives_zeros(name):
    case = CASES[name]
    s = case.family.statistics(case.start, case.batch(), torch.zeros(N, dtype=torch.bool))
    assert all((leaf == 0).all() for leaf in leaves(s))


@EVERY
def test_float32_columns_are_counted_in_float64(name):
    case = CASES[name]
    batch = tree_map(torch.Tensor.float, case.batch())
    found = case.family.statistics(case.start, batch, ALL)
    expected = case.family.statistics(case.start, tree_map(torch.Tensor.double, batch), ALL)
    assert close(found, expected, 1e-14)


@EVERY
def test_the_penalised_likelihood_never_falls(name):
    case = CASES[name]
    batch, theta, values = with_gaps(name, case.batch()), case.start, []
    for _ in range(60):
        values.append((case.family.penalty(theta) - case.family.log_likelihood(theta, batch).mean()).item())
        s, outside = case.family.project(case.family.statistics(theta, batch, ALL))
        assert not outside
        theta = case.family.maximise(s)
    assert max(np.diff(values)) < 1e-12  # rounding of values of the order of 1
    assert values[0] - values[-1] > 0.01


def objective(case, batch, reference):
    """What the M-step minimises, θ ↦ −mean E[log p(y, z; θ) | y; reference] + R(θ), from densities alone."""
    family = case.family
    if hasattr(family, "log_joint"):
        r = family.posterior(reference, batch).exp()
        return lambda theta: family.penalty(theta) - (r * family.log_joint(theta, batch)).sum(1).mean()
    # One factor: E over z by Gauss and Hermite's quadrature, exact for polynomials of degree 2.
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    means, variances = posterior_by_hand(reference, batch)

    def value(theta):
        total = 0.0
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            z = means + node * variances.sqrt()
            residual = torch.nan_to_num(batch["x"]) - theta["mean"] - z[:, None] * theta["loading"][:, 0]
            logs = -(residual**2 / theta["noise"] + torch.log(2 * torch.pi * theta["noise"])) / 2
            total = total + weight * torch.where(torch.isnan(batch["x"]), 0, logs).sum(1).mean()
        return family.penalty(theta) - total

    return value


def posterior_by_hand(theta, batch):
    """Mean and variance of the one factor, row by row."""
    noise, loading = theta["noise"].expand(3), theta["loading"][:, 0]
    found = []
    for x in batch["x"]:
        o = ~torch.isnan(x)
        variance = 1 / (1 + (loading[o] ** 2 / noise[o]).sum())
        found.append((variance * (loading[o] * (x - theta["mean"])[o] / noise[o]).sum(), variance))
    return torch.stack([m for m, _ in found]), torch.stack([v for _, v in found])


@EVERY
def test_the_m_step_is_the_argmin(name):
    case = CASES[name]
    batch = with_gaps(name, case.batch(15))
    value = objective(case, batch, case.start)

    def both(v):
        v = torch.tensor(v, requires_grad=True)
        f = value(case.theta(v))
        f.backward()
        return f.item(), v.grad.numpy()

    found = minimize(both, np.zeros(case.free), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 500})
    theta = case.family.maximise(case.family.statistics(case.start, batch, torch.ones(15, dtype=torch.bool)))
    # BFGS ends with gradients of about 1e-9 and curvatures above 1e-2; its line search stops at rounding, 1e-8
    assert close(theta, case.theta(torch.tensor(found.x)), 1e-5)
    assert value(theta).item() <= found.fun + 1e-12


@EVERY
def test_it_works_inside_vmap(name):
    case = CASES[name]
    batches = [with_gaps(name, case.batch(seed=seed)) for seed in (1, 2)]
    masks = torch.stack([ALL, torch.arange(N) < 9])
    other = case.family.maximise(case.family.statistics(case.start, batches[1], ALL))
    thetas, family = [case.start, other], case.family

    def step(theta, batch, mask):
        s = family.statistics(theta, batch, mask)
        projected, outside = family.project(s)
        new = family.maximise(s)
        values = family.log_likelihood(new, batch), family.posterior(theta, batch)
        return s, projected, outside, new, family.penalty(new), values

    together = torch.func.vmap(step)(stack(thetas), stack(batches), masks)
    alone = stack([step(*each) for each in zip(thetas, batches, masks, strict=True)])
    # Small systems are solved by other routines in batches: rounding times condition numbers
    pairs = zip(leaves(together), leaves(alone), strict=True)
    assert all(torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9) for a, b in pairs)
    shared = torch.func.vmap(family.statistics, in_dims=(None, 0, 0))(case.start, stack(batches), masks)
    assert close(shared["square" if "square" in shared else "weight"][0], next(
        leaf for key, leaf in alone[0].items() if key in ("square", "weight"))[0], 1e-12)  # fmt: skip


@EVERY
def test_statistics_inside_stay_as_they_are(name):
    case = CASES[name]
    s = case.family.statistics(case.start, with_gaps(name, case.batch()), ALL)
    projected, outside = case.family.project(s)
    assert not outside
    assert all(torch.equal(a, b) for a, b in zip(leaves(s), leaves(projected), strict=True))


@EVERY
@pytest.mark.parametrize("size", [0.3, 30.0])
def test_after_any_noise_parameters_can_be_used(name, size):
    case = CASES[name]
    batch = with_gaps(name, case.batch())
    s = case.family.statistics(case.start, batch, ALL)
    found = []
    for key in map(keys.key, range(6)):
        noisy = tree_map(lambda t, key=key: t + size * keys.normal(key, *t.shape, dtype=torch.float64), s)
        projected, outside = case.family.project(noisy)
        found.append(bool(outside))
        theta = case.family.maximise(projected)
        assert all(torch.isfinite(leaf).all() for leaf in leaves(theta))
        assert torch.isfinite(case.family.log_likelihood(theta, batch)).all()
        assert torch.isfinite(case.family.penalty(theta))
        assert all(torch.isfinite(leaf).all() for leaf in leaves(case.family.statistics(theta, batch, ALL)))
        # What came back is inside.
        again, still = case.family.project(projected)
        assert not still
        assert close(scaled(again, 1 / size), scaled(projected, 1 / size), 1e-9)
    assert any(found) or size < 1


@pytest.mark.parametrize("name", MIXTURES)
def test_an_empty_component_is_filled_from_the_average(name):
    case = CASES[name]
    batch, labels = case.batch(), torch.zeros(N, 2)
    labels[:, 1] = 1
    s = case.family.complete(labels, batch, ALL)
    theta = case.family.maximise(s)  # of statistics on the edge of the domain
    assert all(torch.isfinite(leaf).all() for leaf in leaves(theta))
    projected, outside = case.family.project(s)
    assert outside
    assert projected["weight"].tolist() == pytest.approx([FLOOR, 1], rel=1e-12)
    for part, leaf in projected.items():
        if len(leaf) == 2:
            assert leaf[0].numpy() == pytest.approx(FLOOR * leaf[1].numpy(), rel=1e-9), part


@EVERY
def test_samples_come_from_the_model(name):
    case, n = CASES[name], 40_000
    drawn = case.family.sample(case.truth, n, keys.key(3))
    again = case.family.sample(case.truth, n, keys.key(3))
    assert all(torch.equal(drawn[part], again[part]) for part in drawn)
    # Five standard errors of means over the 0.37 n examples of the smaller component, in units of values or of 1
    tolerance = 5 / (0.37 * n) ** 0.5
    if name in MIXTURES:
        labels = torch.nn.functional.one_hot(drawn["z"], 2)
        theta = case.unpenalised.maximise(case.unpenalised.complete(labels, drawn, torch.ones(n, dtype=torch.bool)))
        pairs = [(theta[part], case.truth[part]) for part in theta]
    else:
        L, noise = case.truth["loading"], case.truth["noise"].expand(3)
        pairs = [(drawn["x"].mean(0), case.truth["mean"]), (torch.cov(drawn["x"].T), L @ L.T + torch.diag(noise))]
        pairs += [(drawn["z"].mean(0), double(0)), (torch.cov(drawn["z"].T), double(1)[0])]
    for found, expected in pairs:
        assert torch.allclose(found, expected, rtol=2 * tolerance, atol=tolerance)
