"""Checks of parameters that users give to start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from archipel.core.checks import kind_of
from archipel.core.trees import Tree

ASYMMETRY = 1e-6
"""Of a covariance's largest entry: what rounding in float32 leaves between a matrix and its transpose."""


def check_parameters(owner: str, family: Any, theta: Tree, names: Mapping[str, str] | None = None) -> None:
    """Raise ValueError for parameters out of their domain.

    Args:
        owner: whose parameters they are, in error messages.
        family: its type of covariances and numbers of answers are looked up.
        theta: parameters of the right shapes.
        names: how error messages call the parameters; default: the family's names.

    >>> check_parameters("init", None, {"covariance": torch.tensor([[[1.0, 0.0], [0.5, 1.0]]])})
    Traceback (most recent call last):
    ValueError: init's covariance 0 isn't symmetric: [[1.0, 0.0], [0.5, 1.0]]. Give symmetric matrices.
    """
    for name, values in theta.items():
        called = (names or {}).get(name, name)
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{owner}'s {called} holds NaN or infinite values.")
        if name == "weight":
            _weights(f"{owner}'s {called}", values)
        elif name == "covariance" and values.dim() == 3 and values.shape[1] == values.shape[2]:
            _matrices(f"{owner}'s {called}", values)
        elif name in ("covariance", "noise") and bool((values <= 0).any()):
            raise ValueError(f"{owner}'s {called} holds {float(values.min()):g}; variances must be above 0.")
        elif name == "rate" and bool((values < 0).any()):
            raise ValueError(f"{owner}'s {called} holds {float(values.min()):g}; rates must be 0 or above.")
        elif name == "probability":
            _probabilities(f"{owner}'s {called}", values, getattr(family, "levels", None))


def check_start(owner: str, family: Any, start: Any) -> None:
    """Raise an error for anything but a dict of tensors with parameters in their domain.

    Args:
        owner: what they are, in error messages.
        family: as in :func:`check_parameters`.
        start: what was given.

    Raises:
        TypeError: no dict, or one that holds other values than tensors.
        ValueError: parameters out of their domain.
    """
    if not isinstance(start, dict):
        raise TypeError(
            f"{owner} must be a dict of the family's parameters, or a function (clients, key) → such a dict; given "
            f"{kind_of(start)}."
        )
    for name, value in start.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{owner} holds tensors; its {name} is {kind_of(value)}.")
    check_parameters(owner, family, start)


def unfitting(owner: str, family: Any, theta: Tree, error: Exception) -> ValueError:
    """Return the error of parameters that have other names or shapes than the family's.

    Args:
        owner: what they are, in error messages.
        family: whose parameters they should be.
        theta: what was given.
        error: what the family made of them.
    """
    shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in theta.items()) or "nothing"
    return ValueError(
        f"{owner} has {shapes}, which doesn't fit the parameters of a {type(family).__name__}; its documentation has "
        f"their names and shapes. ({error})"
    )


def _weights(what: str, values: Tensor) -> None:
    if bool((values < 0).any()) or abs(float(values.sum()) - 1) > 1e-5:
        raise ValueError(f"{what} must be 0 or above and sum to 1; given {values.tolist()}.")


def _matrices(what: str, values: Tensor) -> None:
    for k, matrix in enumerate(values.to(torch.float64)):
        if bool((matrix - matrix.mT).abs().max() > ASYMMETRY * matrix.abs().max()):
            raise ValueError(f"{what} {k} isn't symmetric: {_shown(matrix)}. Give symmetric matrices.")
        lowest = float(torch.linalg.eigvalsh(matrix)[0])
        if not lowest > 0:
            raise ValueError(
                f"{what} {k} isn't positive definite: its lowest eigenvalue is {lowest:.4g}. Add a positive number to "
                "its diagonal, or start with another matrix."
            )


def _probabilities(what: str, values: Tensor, levels: tuple[int, ...] | None) -> None:
    if bool(((values < 0) | (values > 1)).any()):
        raise ValueError(f"{what} must lie between 0 and 1; given {float(values.min()):g} to {float(values.max()):g}.")
    columns = [] if levels is None or values.shape[-1] != sum(levels) else values.split(levels, dim=-1)
    for j, column in enumerate(columns):
        sums = column.sum(-1)
        if not torch.allclose(sums, torch.ones_like(sums), atol=1e-5):
            raise ValueError(f"{what} of column {j} must sum to 1 in every component; the sums are {sums.tolist()}.")


def _shown(matrix: Tensor) -> str:
    return str(matrix.tolist()) if len(matrix) <= 3 else f"{len(matrix)} × {len(matrix)}"
