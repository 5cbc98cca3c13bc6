"""Separated populations: when a multinomial logistic regression has no finite maximum.

A. Albert, J. A. Anderson: On the existence of maximum likelihood estimates in logistic regression models, Biometrika
71, 1984. With H_j = (1, h(x_j)), the maximum is finite (up to directions that change no log-ratio) unless some β
satisfies (β_k − β_l)ᵀH_j ≥ 0 for every point j of every population k and every other population l, and > 0 for one of
them. Separation is complete if all are above 0 for a pair of groups, and quasi-complete otherwise. Points that several
populations share need equality among those.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, sparse
from torch import Tensor

SMALL = 1e-3
"""Without a probability below this, at a maximum that is reached to 1e-6, nothing is separated."""
MARGIN = 1e-5
"""A margin (β_k − β_l)ᵀH_j, with |β| ≤ 1 and standardised features, that is above 0 beyond the solver's tolerance."""
FAR = 1e4
"""P(l|x_j) is much larger than the gradient if it is so many times as large: then the margin is below 1/FAR."""
LOOSE, TIGHT = 1e-8, 1e-12
"""Eigenvalues below this share of the largest count as zero: for constraints, and for all directions that matter."""
ROWS = 2000
"""Constraints that a linear programme gains at a time."""


class Separation(NamedTuple):
    """Population ``inner`` has so many ``points`` with an unbounded density ratio to population ``outer``."""

    inner: int
    outer: int
    points: int


def separation(h: Tensor, memberships: Tensor, posterior: Tensor, gradient: float = 0.0) -> Separation | None:
    """Find out whether the basis separates populations.

    Let g be the likelihood's gradient at the fit. If β separates, Σ P(l|x_j) (β_k − β_l)ᵀH_j = βᵀg over all points j of
    population k and l ≠ k, with no term below 0. So where P(l|x_j) is much larger than g, (β_k − β_l)ᵀH_j must be 0. If
    such pairs (j, l) leave no β, nothing is separated. Otherwise a linear programme decides, which gains constraints
    until its solution satisfies all.

    Args:
        h: ``(n, d + 1)`` float64, 1 and standardised features.
        memberships: ``(n, L)`` w.
        posterior: ``(n, L)`` P(l|x_j) of a fit. Its large entries are the constraints to begin with.
        gradient: the largest entry of g.

    Returns:
        The pair of populations with the most separated points; ``None`` if the maximum is finite.

    >>> h = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    >>> w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)  # 0 | 0, 1
    >>> separation(h, w, torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]))
    Separation(inner=1, outer=0, points=1)
    """
    outside = memberships == 0
    if not bool((outside & (posterior < SMALL)).any()):
        return None
    L = memberships.shape[1]
    own = memberships.argmax(1)
    point, other = (torch.arange(L) != own[:, None]).nonzero(as_tuple=True)
    strict = outside[point, other]  # the others are shared points: equality
    everything = _Pairs(h, own, point, other, L)
    large = posterior[point, other] > FAR * L * h.shape[1] * max(gradient, 1e-16 * len(h))
    equal = _Pairs(h, own, point[large | ~strict], other[large | ~strict], L)
    if equal.rank(LOOSE) == everything.rank(TIGHT):
        return None
    order = torch.argsort(posterior[point, other], descending=True)
    chosen = torch.zeros(len(point), dtype=torch.bool)
    chosen[order[:ROWS]] = True
    goal = _Pairs(h, own, point[strict], other[strict], L).total()
    while True:
        pairs = _Pairs(h, own, point[chosen], other[chosen], L)
        beta = _best(goal, pairs.matrix(), strict[chosen].numpy())
        margins = everything.margins(beta)
        if float(margins[strict].max()) <= MARGIN:
            return None
        wrong = torch.where(strict, -margins, margins.abs())
        wrong[chosen] = 0
        worst = wrong.topk(min(ROWS, len(wrong)))
        missing = worst.indices[worst.values > MARGIN / 10]
        if not len(missing):
            break
        chosen[missing] = True
    apart = torch.zeros(L, L, dtype=torch.int64)
    far = strict & (margins > MARGIN)
    apart.index_put_((own[point[far]], other[far]), torch.ones((), dtype=torch.int64), accumulate=True)
    inner, outer = divmod(int(apart.argmax()), L)
    return Separation(inner, outer, int(apart[inner, outer]))


class _Pairs(NamedTuple):
    """Rows (e_k − e_l) ⊗ H_j: point j of population k = own_j against population l."""

    h: Tensor
    own: Tensor
    point: Tensor
    other: Tensor
    L: int

    def total(self) -> NDArray[np.float64]:
        """Sum the rows, divided by their largest entry, ``(L (d + 1),)``."""
        rows, sums = self.h[self.point], torch.zeros(self.L, self.h.shape[1], dtype=self.h.dtype)
        sums.index_add_(0, self.own[self.point], rows).index_add_(0, self.other, rows, alpha=-1)
        total: NDArray[np.float64] = (sums / sums.abs().max().clamp(min=1e-300)).flatten().numpy()
        return total

    def rank(self, share: float) -> int:
        """Count the eigenvalues of Σ rows rowsᵀ above a share of the largest."""
        D = self.h.shape[1]
        gram = torch.zeros(self.L, self.L, D, D, dtype=self.h.dtype)
        cell = self.own[self.point] * self.L + self.other
        order = torch.argsort(cell, stable=True)
        sizes = torch.bincount(cell, minlength=self.L**2).tolist()
        for place, points in enumerate(self.point[order].split(sizes)):
            k, other = divmod(place, self.L)
            rows = self.h[points]
            products = rows.T @ rows
            gram[k, k] += products
            gram[other, other] += products
            gram[k, other] -= products
            gram[other, k] -= products
        values = torch.linalg.eigvalsh(gram.permute(0, 2, 1, 3).reshape(self.L * D, self.L * D))
        return int((values > share * values[-1].clamp(min=1e-300)).sum())

    def matrix(self) -> sparse.csr_matrix:
        """Return the rows, ``(rows, L (d + 1))``."""
        width = self.h.shape[1]
        columns = torch.arange(width)
        index = torch.cat(
            [self.own[self.point][:, None] * width + columns, self.other[:, None] * width + columns], dim=1
        )
        rows = self.h[self.point]
        values = torch.cat([rows, -rows], dim=1)
        starts = np.arange(len(rows) + 1) * 2 * width
        return sparse.csr_matrix(
            (values.flatten().numpy(), index.flatten().numpy(), starts), shape=(len(rows), self.L * width)
        )

    def margins(self, beta: Tensor) -> Tensor:
        """Return (β_k − β_l)ᵀH_j for each row, ``(rows,)``."""
        scores = self.h @ beta.reshape(self.L, -1).T
        found: Tensor = scores[self.point, self.own[self.point]] - scores[self.point, self.other]
        return found


def _best(goal: NDArray[np.float64], rows: sparse.csr_matrix, strict: NDArray[np.bool_]) -> Tensor:
    """Maximise goal · β subject to rows · β ≥ 0, or = 0 where not strict, and |β| ≤ 1."""
    found = optimize.linprog(
        -goal,
        A_ub=-rows[strict] if strict.any() else None,
        b_ub=np.zeros(int(strict.sum())) if strict.any() else None,
        A_eq=rows[~strict] if not strict.all() else None,
        b_eq=np.zeros(int((~strict).sum())) if not strict.all() else None,
        bounds=(-1, 1),
        method="highs",
    )
    beta = np.zeros_like(goal) if found.x is None else found.x  # β = 0 satisfies all
    return torch.from_numpy(np.asarray(beta, dtype=np.float64))
