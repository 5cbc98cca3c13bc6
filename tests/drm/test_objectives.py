"""Q₂, its surrogate and the profile log empirical likelihood: finite differences, App. C.5, Lemma 2, gauge."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, root

from archipel.drm import balancing, multipliers, normalising, profile, q2, responsibilities, surrogate

N, L, D = 30, 4, 2  # two clients of two components


def problem(seed=0):
    """Features, responsibilities (half of the points are client 0's), log-shares and tilts of a tiny federation."""
    rng = np.random.default_rng(seed)
    h = torch.tensor(rng.normal(size=(N, D)))
    log_shares = torch.full((N, L), -torch.inf, dtype=torch.float64)
    log_shares[: N // 2, :2] = torch.tensor(np.log(rng.dirichlet([2, 2], N // 2)))
    log_shares[N // 2 :, 2:] = torch.tensor(np.log(rng.dirichlet([2, 2], N - N // 2)))
    tilts = torch.tensor(0.3 * rng.normal(size=(L, D + 1)))
    # mass one under some weights, so that eq. (6) has a solution
    tilts[:, 0] = -(torch.tensor(rng.dirichlet(np.full(N, 3.0))) @ (h @ tilts[:, 1:].T).exp()).log()
    return h, log_shares.softmax(1), log_shares, tilts


def ratios(tilts, h):
    return tilts[:, 0] + h @ tilts[:, 1:].T


def gradient(function, tilts):
    leaf = tilts.clone().requires_grad_()
    value = function(leaf)
    return torch.autograd.grad(value, leaf)[0]


def finite_differences(function, tilts, step=1e-6):
    """Central ones; multipliers are solved for at each point anew."""
    found = torch.zeros_like(tilts)
    for place in np.ndindex(*tilts.shape):
        move = torch.zeros_like(tilts)
        move[place] = step
        found[place] = (function(tilts + move) - function(tilts - move)) / (2 * step)
    return found


def surrogates_maximum(h, w):
    """By scipy's BFGS and then a root finder on the gradient, with numpy's own formulas."""
    x, weights = np.column_stack([np.ones(N), h.numpy()]), w.numpy()
    log_tau = np.log(weights.sum(0))

    def residual(flat):
        logits = log_tau + x @ flat.reshape(L, D + 1).T
        p = np.exp(logits - logits.max(1, keepdims=True))
        return ((p / p.sum(1, keepdims=True) - weights).T @ x).ravel()

    def loss(flat):
        logits = log_tau + x @ flat.reshape(L, D + 1).T
        return np.logaddexp.reduce(logits, axis=1).sum() - (weights * logits).sum()

    start = minimize(loss, np.zeros(L * (D + 1)), jac=residual, method="BFGS").x
    found = root(residual, start, method="lm", options={"xtol": 1e-15, "ftol": 1e-15}).x
    assert np.abs(residual(found)).max() < 1e-11
    return torch.tensor(found.reshape(L, D + 1))


def test_gradients_by_the_envelope_theorem_are_finite_differences_with_new_multipliers():
    h, w, log_shares, tilts = problem()
    for function in (
        lambda t: q2(ratios(t, h), w),
        lambda t: profile(ratios(t, h), log_shares),
        lambda t: surrogate(ratios(t, h), w),
    ):
        # error of central differences, 1e4 step² here, and of values, 1e-13/step
        torch.testing.assert_close(gradient(function, tilts), finite_differences(function, tilts), rtol=1e-6, atol=1e-6)


def test_the_gradient_in_the_log_ratios_is_the_papers():
    h, w, _, tilts = problem(1)
    a = ratios(tilts, h)
    found = multipliers(a)
    expected = w - N * found.weights[:, None] * found.values * a.exp()
    torch.testing.assert_close(gradient(lambda t: q2(t, w), a), expected, rtol=0, atol=1e-12)
    assert float(expected.sum(0).abs().max()) > 0.1  # not at a critical point


def test_lemma_2_gradients_of_profile_and_q2_agree_at_the_e_step():
    h, _, log_shares, tilts = problem(2)
    a = ratios(tilts, h)
    w = responsibilities(a, log_shares)
    torch.testing.assert_close(w.sum(1), torch.ones(N, dtype=torch.float64))
    torch.testing.assert_close(
        gradient(lambda t: profile(ratios(t, h), log_shares), tilts),
        gradient(lambda t: q2(ratios(t, h), w), tilts),
        rtol=0,
        atol=1e-12,
    )
    # and elsewhere Q₂ + entropy is a lower bound (Jensen), tight at w
    shares = torch.where(w > 0, log_shares, 0.0)
    bound = q2(a, w) + (w * shares).sum() - torch.special.xlogy(w, w).sum() - N * np.log(N)
    torch.testing.assert_close(bound, profile(a, log_shares), rtol=0, atol=1e-10)
    other = torch.softmax(log_shares + 2 * a, 1)
    bound = q2(a, other) + (other * shares).sum() - torch.special.xlogy(other, other).sum() - N * np.log(N)
    assert float(bound) < float(profile(a, log_shares)) - 1e-3


@pytest.mark.parametrize("seed", [3, 4])
def test_a_critical_point_of_the_surrogate_becomes_one_of_q2_by_normalising(seed):
    h, w, _, _ = problem(seed)
    tilts = surrogates_maximum(h, w)
    tilts = tilts + torch.tensor([0.7, -0.2, 0.4])  # the gauge is free: the same for all populations
    tau = w.sum(0)
    assert float(gradient(lambda t: surrogate(ratios(t, h), w), tilts).abs().max()) < 1e-10
    shifted = tilts.clone()
    shifted[:, 0] += normalising(ratios(tilts, h), tau)
    a = ratios(shifted, h)
    r = 1 / (a.exp() @ tau)
    # eqs. (4) and (6), with λ = τ/n; 1e-10 is what is left of the surrogate's gradient
    assert float(r.sum()) == pytest.approx(1, abs=1e-10)
    torch.testing.assert_close(r @ a.exp(), torch.ones(L, dtype=torch.float64), rtol=0, atol=1e-10)
    found = multipliers(a)
    torch.testing.assert_close(found.values, tau / N, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.weights, r, rtol=0, atol=1e-10)
    assert float(gradient(lambda t: q2(ratios(t, h), w), shifted).abs().max()) < 1e-8
    # the two objectives meet there: Σ w a − Σ log Σ τ exp(a) + n log n
    assert float(q2(a, w)) == pytest.approx(float(surrogate(a, w)) + N * np.log(N), abs=1e-8)


def test_multipliers_are_mean_responsibilities_at_critical_points_of_q2_and_only_there():
    h, w, _, tilts = problem(5)
    tau = w.sum(0)
    away = surrogates_maximum(h, w) + 0.05 * tilts
    away[:, 0] += normalising(ratios(away, h), tau)
    assert float((multipliers(ratios(away, h)).values - tau / N).abs().max()) > 0.01

    def residual(flat):
        t = torch.tensor(flat.reshape(L, D + 1))
        return gradient(lambda t: q2(ratios(t, h), w), t).numpy().ravel()

    found = root(residual, away.numpy().ravel(), method="lm", options={"xtol": 1e-14, "ftol": 1e-14})
    assert np.abs(found.fun).max() < 1e-8
    a = ratios(torch.tensor(found.x.reshape(L, D + 1)), h)
    torch.testing.assert_close(multipliers(a).values, tau / N, rtol=0, atol=1e-7)


def test_the_surrogate_does_not_see_the_gauge_and_q2_does():
    h, w, _, tilts = problem(6)
    moved = tilts + torch.tensor([0.01, 0.05, -0.03])
    a, b = ratios(tilts, h), ratios(moved, h)
    torch.testing.assert_close(surrogate(a, w), surrogate(b, w), rtol=1e-12, atol=0)
    assert abs(float(q2(a, w) - q2(b, w))) > 1e-3
    raw = normalising(a, w.sum(0))
    torch.testing.assert_close(normalising(a + 5, w.sum(0)), raw - 5)
    torch.testing.assert_close(normalising(a, 3 * w.sum(0)), raw)  # shares of the sample are what counts


def test_the_surrogate_is_a_soft_target_cross_entropy():
    h, w, _, tilts = problem(7)
    a, tau = ratios(tilts, h), w.sum(0)
    entropy = torch.nn.functional.cross_entropy(tau.log() + a, w, reduction="sum")
    torch.testing.assert_close(surrogate(a, w), -entropy - (tau * tau.log()).sum())


def test_outside_the_hull_there_is_no_value_but_advice():
    _, w, log_shares, _ = problem(8)
    large = torch.ones(N, L, dtype=torch.float64)  # every ratio above one
    for function in (lambda: q2(large, w), lambda: profile(large, log_shares)):
        with pytest.raises(ValueError, match="normalising"):
            function()


def test_mismatched_shapes_are_said():
    with pytest.raises(ValueError, match="points in rows"):
        surrogate(torch.zeros(3, 2), torch.zeros(3, 4))


def test_balanced_ratios_have_mass_one_whatever_the_tilts():
    h, w, _, tilts = problem(9)
    a = ratios(tilts, h) + torch.tensor([1.0, 0.0, -1.0, 2.0])
    assert not multipliers(a).inside
    tau = w.sum(0)
    balanced = a + balancing(a, tau)
    found = multipliers(balanced)
    assert found.inside
    torch.testing.assert_close(found.weights @ balanced.exp(), torch.ones(L, dtype=torch.float64), rtol=0, atol=1e-9)
    # λ is unique only where columns aren't nearly the same; the weights are
    torch.testing.assert_close(found.weights, 1 / (balanced.exp() @ tau), rtol=1e-7, atol=0)
    assert float(surrogate(balanced, w)) > float(surrogate(a, w))
