"""Shifts of tables and series: another calibration, missing values."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.core import keys
from archipel.data.client import Columns
from archipel.data.federation import Federation
from archipel.data.shifts.shift import Shift, check_share


@dataclass(frozen=True)
class Affine(Shift):
    """Another calibration of tables and series: x becomes scale · x + offset, for all features or one each.

    Args:
        scale: a number or (d,) numbers, not 0.
        offset: a number or (d,) numbers.

    >>> Affine(scale=2.0, offset=(0.0, 1.0)).apply({"x": torch.ones(1, 2)}, {}, keys.key(0))[0]["x"]
    tensor([[2., 3.]])
    """

    scale: float | tuple[float, ...] = 1.0
    offset: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "offset"):
            value = getattr(self, name)
            numbers = tuple(map(float, value)) if isinstance(value, Sequence) else (float(value),)
            object.__setattr__(self, name, numbers if isinstance(value, Sequence) else numbers[0])
            if not all(map(math.isfinite, numbers)) or (name == "scale" and 0 in numbers):
                raise ValueError(f"{name} is {value}; give finite numbers, and no scale of 0, which erases a feature.")

    def apply(
        self, columns: Columns, truth: Columns, key: Tensor, train: Columns | None = None
    ) -> tuple[Columns, Columns]:
        x = columns["x"]
        scale, offset = (torch.tensor(value, dtype=x.dtype) for value in (self.scale, self.offset))
        return columns | {"x": x * scale + offset}, truth

    def check(self, federation: Federation) -> None:
        _check_features(federation, "an affine shift")
        for name, value in (("scale", self.scale), ("offset", self.offset)):
            if isinstance(value, tuple) and len(value) != federation.inputs.shape[-1]:
                raise ValueError(
                    f"{name} has {len(value)} numbers; {federation.name!r} has {federation.inputs.shape[-1]} features."
                )


@dataclass(frozen=True)
class Missing(Shift):
    """Values of tables and series that are missing completely at random.

    Args:
        rate: probability that a value is missing, 0 ≤ rate ≤ 1.
        value: what stands in its place: "nan", a number, or "mean": the feature's mean over what the client's training
            examples still have.
        features: which features are affected; all if not given. With rate=1.0: a sensor that a client doesn't have.

    Raises:
        ValueError: on application, "mean" where nothing of a feature is left.
    """

    rate: float
    value: Literal["nan", "mean"] | float = "nan"
    features: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_share("rate", self.rate)
        if isinstance(self.value, str) and self.value not in ("nan", "mean"):
            raise ValueError(f"value is {self.value!r}; it is 'nan', 'mean' or a number.")
        if self.features is not None:
            object.__setattr__(self, "features", tuple(operator.index(j) for j in self.features))

    def apply(
        self, columns: Columns, truth: Columns, key: Tensor, train: Columns | None = None
    ) -> tuple[Columns, Columns]:
        x = columns["x"]
        affected = torch.ones(x.shape[-1], dtype=torch.bool)
        if self.features is not None:
            affected = torch.zeros_like(affected).index_fill(0, torch.tensor(self.features, dtype=torch.int64), True)
        missing = (keys.uniform(key, *x.shape, dtype=torch.float64) < self.rate) & affected
        holes = x.masked_fill(missing, torch.nan)
        if self.value == "mean":
            # In the training columns, means already stand in the holes: the mean is that of what is left.
            mean = (holes if train is None else train["x"]).flatten(0, -2).double().nanmean(0)
            if len(x) and bool((torch.isnan(mean) & missing.flatten(0, -2).any(0)).any()):
                raise ValueError(
                    'value="mean" needs values to take the mean of, and a feature lost all of them. '
                    'Take a smaller rate, value="nan" or a number.'
                )
            filled = torch.where(missing, mean.to(x.dtype), x)
        else:
            filled = x.masked_fill(missing, float(self.value))
        return columns | {"x": filled}, truth | {"missing": truth.get("missing", torch.tensor(False)) | missing}

    def check(self, federation: Federation) -> None:
        _check_features(federation, "taking values away")
        d = federation.inputs.shape[-1]
        if wrong := [j for j in self.features or () if not 0 <= j < d]:
            raise ValueError(f"features names {wrong[0]}; {federation.name!r} has the features 0 to {d - 1}.")


def _check_features(federation: Federation, what: str) -> None:
    """Refuse images."""
    if federation.inputs.kind == "image":
        raise ValueError(
            f"{what} is for tables and series; {federation.name!r} holds images. See archipel.data.shifts.image_shifts."
        )
