"""How many parameters of a latent class model its distribution tells: the generic dimension, for BIC and AIC.

A table of d columns with c_j answers has Π c_j − 1 free probabilities, and a latent class model with K classes can't
have more than that. It may have fewer than K − 1 + K Σ (c_j − 1) even below that bound: three classes of four
yes-or-no columns have 14 parameters and the dimension 13 (L. A. Goodman, Biometrika 61, 1974).

If the columns fall into three groups with products κ of their answers such that Σ min(K, κ) ≥ 2K + 2, parameters are
generically identifiable, and the dimension is their number (E. S. Allman, C. Matias, J. A. Rhodes: Identifiability of
parameters in latent structure models with many observed variables, Annals of Statistics 37, 2009, Theorem 4). Otherwise
the table is small, and the dimension is the rank of the Jacobian at random parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

CELLS = 4096
"""The largest table whose Jacobian is computed; for larger ones the smaller of the two counts is taken."""
RANK = 1e-9
"""Singular values below this share of the largest are zeros with rounding errors."""


def latent_class_dimension(components: int, levels: Sequence[int]) -> int:
    """Compute the dimension of K latent classes of columns with these numbers of answers.

    A column with one answer has no parameter.

    >>> latent_class_dimension(1, (2, 2, 1)), latent_class_dimension(2, (2, 2)), latent_class_dimension(3, (2, 2, 2, 2))
    (2, 3, 13)
    """
    return _dimension(components, tuple(sorted((c for c in levels if c > 1), reverse=True)))


@cache
def _dimension(K: int, levels: tuple[int, ...]) -> int:
    parameters = K - 1 + K * sum(c - 1 for c in levels)
    cells = math.prod(levels)
    if K == 1:
        return parameters
    groups = [1, 1, 1]
    for c in levels:
        place = next((g for g in range(3) if groups[g] < K), 0)
        groups[place] *= c
    if sum(min(K, kappa) for kappa in groups) >= 2 * K + 2:
        return parameters
    if cells > CELLS:
        return min(parameters, cells - 1)
    return int(np.linalg.matrix_rank(_jacobian(K, levels), rtol=RANK)) if levels else 0


def _jacobian(K: int, levels: tuple[int, ...]) -> NDArray[np.float64]:
    """Differentiate all cells' probabilities in free parameters, at random ones, ``(parameters, cells)``."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(K, 5.0))
    columns = [rng.dirichlet(np.ones(c), size=K) for c in levels]
    tables = [_table([column[k] for column in columns]) for k in range(K)]
    rows = [table - tables[-1] for table in tables[:-1]]
    for k in range(K):
        for j, c in enumerate(levels):
            for answer in range(1, c):
                parts = [column[k] for column in columns]
                parts[j] = np.eye(c)[answer] - np.eye(c)[0]
                rows.append(weights[k] * _table(parts))
    return np.stack(rows)


def _table(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Compute the outer product of columns' vectors, flat."""
    table = np.ones(1)
    for part in parts:
        table = np.outer(table, part).ravel()
    return table
