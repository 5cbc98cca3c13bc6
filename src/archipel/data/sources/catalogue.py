"""All published sources by name."""

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path

from archipel.data.sources.cifar import CIFAR10, CIFAR100, cifar10, cifar100
from archipel.data.sources.flamby import FED_ISIC2019, fed_isic2019
from archipel.data.sources.idx import FASHION_MNIST, fashion_mnist
from archipel.data.sources.leaf import FEMNIST, femnist
from archipel.data.sources.scikit import (
    BREAST_CANCER,
    DIABETES,
    DIGITS,
    IRIS,
    WINE,
    breast_cancer,
    diabetes,
    digits,
    iris,
    wine,
)
from archipel.data.sources.source import About, Source
from archipel.data.sources.uci import HAPT, HEART_DISEASE, hapt, heart_disease
from archipel.data.sources.unmarked import CROSSBILL, crossbill

_LOADERS: dict[About, Callable[..., Source]] = {
    FASHION_MNIST: fashion_mnist,
    DIGITS: digits,
    CIFAR10: cifar10,
    CIFAR100: cifar100,
    FEMNIST: femnist,
    FED_ISIC2019: fed_isic2019,
    HEART_DISEASE: heart_disease,
    HAPT: hapt,
    CROSSBILL: crossbill,
    BREAST_CANCER: breast_cancer,
    WINE: wine,
    IRIS: iris,
    DIABETES: diabetes,
}
CATALOGUE: tuple[About, ...] = tuple(_LOADERS)
_BY_NAME = {about.name: load for about, load in _LOADERS.items()}


def sources() -> dict[str, str]:
    """Name all sources, each with a line on what it is.

    >>> list(sources())[:2]
    ['fashion-mnist', 'digits']
    """
    return {name: (load.__doc__ or "").split("\n", 1)[0] for name, load in _BY_NAME.items()}


def load_source(name: str, data_dir: str | Path | None = None, **options: object) -> Source:
    """Load a source by its name.

    Args:
        name: one of `sources()`.
        data_dir: a folder of yours that holds its files.
        options: further arguments of its loader, as ``missing="impute-median"`` for heart disease.

    Raises:
        ValueError: there is no such source, and the nearest name is given; no such option; or a folder for a
            source that reads no files.
        FileNotFoundError: its files are nowhere.

    >>> load_source("digit")
    Traceback (most recent call last):
    ValueError: there is no data source 'digit'. Did you mean 'digits'? There are: fashion-mnist, digits, ...
    """
    if name not in _BY_NAME:
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no data source {name!r}.{hint} There are: {', '.join(_BY_NAME)}.")
    known = [option for option in inspect.signature(_BY_NAME[name]).parameters if option != "data_dir"]
    if unknown := [option for option in options if option not in known]:
        raise ValueError(
            f"{name} has no option {unknown[0]!r}; " + (f"it has {', '.join(known)}." if known else "it has none.")
        )
    about = next(about for about in CATALOGUE if about.name == name)
    if data_dir is not None and not about.files:
        raise ValueError(
            f"{name} is part of a package and reads no files, so data_dir={data_dir} has no effect. Leave it out."
        )
    return _BY_NAME[name](data_dir, **options)
