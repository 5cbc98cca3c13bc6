"""Theorem 1 in numbers: the bound's terms and the recursion by hand, and runs of the library between the two."""

import json
import math
from itertools import pairwise

import pytest
import torch

from archipel.papers.fedspm import theorem1, theorem1_report
from archipel.papers.fedspm.theorem1 import bound, exact, factors, point
from archipel.reports.provenance import provenance


def test_factors_are_the_coefficients_of_the_unrolled_momentum():
    """Lemma 3: φ_E − φ_0 = −η Σ_e μ_(E,e) g_e, by pulses through the recursion."""
    for momentum in (0.0, 0.5, 0.95):
        weights = []
        for pulse in range(4):
            d, phi = 0.0, 0.0
            for e in range(4):
                d = momentum * d + (e == pulse)
                phi -= d
            weights.append(-phi)
        a, s = factors(momentum, 4)
        assert a == pytest.approx(sum(weights))
        assert s == pytest.approx(sum(w * w for w in weights))


def test_the_bounds_terms_without_momentum():
    """μ = 0: a_E = s_E = E = 4; η = 0.1/4 with T = 16; Σ ρ² = (1 + 4 + 9)/36; F⁰ − F* = ‖φ⁰‖²/2 = 2; σ² = 60."""
    gap, noise, drift = bound(0.0, 16)
    assert gap == pytest.approx(4 * 2 / (4 * 0.025 * 16))
    assert noise == pytest.approx(4 * 0.025 * 60 * 14 / 36)
    rho = torch.tensor([1, 2, 3], dtype=torch.float64) / 6
    between = float((rho[:, None] * theorem1.minima() ** 2).sum())
    assert drift == pytest.approx(12 * 0.025**2 * (16 * between + 4 * 60))


def test_the_problem_has_the_constants_it_says():
    a, rho = theorem1.minima(), theorem1.shares()
    torch.testing.assert_close(rho @ a, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    phi = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
    squares = float(rho @ (phi - a).square().sum(1))  # Assumption 3, with Γ₁ = 1 and equality
    assert squares == pytest.approx(float(rho @ a.square().sum(1)) + float(phi.square().sum()))
    noise = theorem1.fresh(torch.zeros(20_000, 4), torch.tensor(7))
    # E‖ω‖² = σ²; its standard error is σ² √(2/d)/√n = 0.3
    assert float(noise.square().sum(1).mean()) == pytest.approx(60, abs=1.5)


def test_the_recursion_for_one_plain_step_is_a_geometric_series(monkeypatch):
    monkeypatch.setattr(theorem1, "STEPS", 1)
    eta, variance = 0.1 / 4, (0.1 / 4) ** 2 * 60 * 14 / 36
    q = (1 - eta) ** 2
    squares = [4 * q**t + variance * (1 - q**t) / (1 - q) for t in range(16)]
    assert exact(0.0, 16) == pytest.approx(sum(squares) / 16)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_runs_are_where_the_recursion_says_and_below_the_bound(momentum):
    points = [point(momentum, T) for T in (16, 64)]
    for p in points:
        assert abs(p.measured - p.exact) < 4 * p.error  # standard errors: beyond that once in 16,000
        assert p.measured + 4 * p.error < p.bound
    # 1/√T, up to the Monte Carlo error of two logarithms (4 · 0.015) and a start that hasn't quite died out (0.03)
    slope = math.log(points[1].measured / points[0].measured) / math.log(4)
    assert slope == pytest.approx(-0.5, abs=0.09 / math.log(4))


def test_the_rate_without_monte_carlo():
    for momentum in theorem1.MOMENTA:
        values = [exact(momentum, T) for T in (64, 256, 1024, 4096)]
        for one, other in pairwise(values):
            assert math.log(other / one) / math.log(4) == pytest.approx(-0.5, abs=0.01)  # O(1/T) is left
        bounds = [sum(bound(momentum, T)) for T in (10**6, 4 * 10**6)]
        assert math.log(bounds[1] / bounds[0]) / math.log(4) == pytest.approx(-0.5, abs=0.01)


def test_momentum_is_traded_between_start_and_noise():
    for rounds in theorem1.ROUNDS:
        values = [exact(momentum, rounds) for momentum in theorem1.MOMENTA]
        best = values.index(min(values))
        assert 0 < best < len(values) - 1
        gaps, noises, _ = zip(*(bound(momentum, rounds) for momentum in theorem1.MOMENTA), strict=True)
        assert all(one > other for one, other in pairwise(gaps))
        assert all(one < other for one, other in pairwise(noises))


def test_a_learning_rate_beyond_the_theorems_is_refused():
    with pytest.raises(ValueError, match=r"requires less than 0\.301"):
        bound(0.95, 4)


def test_files(tmp_path):
    written = theorem1_report.theorem1(tmp_path, momenta=(0.0,), rounds=(16, 17))
    assert sorted(path.name for path in written) == ["theorem1.json", "theorem1.md", "theorem1.pdf", "theorem1.png"]
    numbers = json.loads((tmp_path / "theorem1.json").read_text())
    assert sorted(numbers["about"]) == sorted(provenance())
    numbers = numbers["points"]
    assert [entry["rounds"] for entry in numbers] == [16, 17]
    assert numbers[0]["bound"] == pytest.approx(sum(bound(0.0, 16)))
    row = (tmp_path / "theorem1.md").read_text().splitlines()[2]
    assert row.startswith("| 0 | 16 |")
    assert f"{numbers[0]['measured']:.3g}" in row
