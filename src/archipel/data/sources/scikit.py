"""The small data sets that are part of scikit-learn and need no files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from archipel.data.sources.source import About, Source, codes_tensor, content_checksum

EMBEDDED = "It's embedded in scikit-learn"
DIGITS = About(
    name="digits",
    title="Handwritten digits",
    size="1,797 images 8×8, 10 classes",
    clients="",
    citation="Alpaydin and Kaynak (1998). Optical recognition of handwritten digits. UCI repository.",
    licence="CC BY 4.0",
    obtain=EMBEDDED,
    check="built in",
)
BREAST_CANCER = About(
    name="breast-cancer",
    title="Breast cancer Wisconsin (diagnostic)",
    size="569 patients, 30 features, 2 classes",
    clients="",
    citation="Wolberg, Mangasarian, Street and Street (1993). Breast cancer Wisconsin (diagnostic). UCI repository.",
    licence="CC BY 4.0",
    obtain=EMBEDDED,
    check="built in",
)
WINE = About(
    name="wine",
    title="Wine recognition",
    size="178 wines, 13 features, 3 classes",
    clients="",
    citation="Aeberhard and Forina (1992). Wine. UCI repository.",
    licence="CC BY 4.0",
    obtain=EMBEDDED,
    check="built in",
)
IRIS = About(
    name="iris",
    title="Iris",
    size="150 flowers, 4 features, 3 classes",
    clients="",
    citation="Fisher (1936). The use of multiple measurements in taxonomic problems. Annals of Eugenics 7.",
    licence="CC BY 4.0",
    obtain=EMBEDDED,
    check="built in",
)
DIABETES = About(
    name="diabetes",
    title="Diabetes progression",
    size="442 patients, 10 features, regression",
    clients="",
    citation="Efron, Hastie, Johnstone and Tibshirani (2004). Least angle regression. Annals of Statistics 32.",
    licence="BSD, with scikit-learn",
    obtain=EMBEDDED,
    check="built in",
)


def digits(data_dir: str | Path | None = None) -> Source:
    """Handwritten digits: 1,797 grey images, 8×8, embedded in scikit-learn.

    Their values 0…16 become uint8 v = ⌊255 v₁₆ / 16 + ½⌋, from 0 to 255.

    Args:
        data_dir: not used; all sources have the same signature.

    Returns:
        x (1797, 8, 8) uint8, y (1797,) int64.

    >>> digits()
    Source('digits', x=(1797, 8, 8) torch.uint8, 10 classes)

    Source: Alpaydin and Kaynak (1998), Optical recognition of handwritten digits, UCI machine learning repository.
    """
    from sklearn.datasets import load_digits  # costs half a second to import, and isn't needed for other sources

    bunch = load_digits()
    x = np.floor(bunch.images * (255 / 16) + 0.5).astype(np.uint8)
    y = bunch.target.astype(np.int64)
    names = tuple(str(digit) for digit in range(10))
    return DIGITS.source(x=torch.from_numpy(x), y=codes_tensor(y), classes=names, checksum=content_checksum(x, y))


def breast_cancer(data_dir: str | Path | None = None) -> Source:
    """Breast cancer: 569 patients, 30 features of cell nuclei, malignant or benign; embedded in scikit-learn.

    >>> breast_cancer()
    Source('breast-cancer', x=(569, 30) torch.float32, 2 classes)
    """
    from sklearn.datasets import load_breast_cancer

    return _table(BREAST_CANCER, load_breast_cancer())


def wine(data_dir: str | Path | None = None) -> Source:
    """Wine: 178 wines of three cultivars, 13 chemical features; embedded in scikit-learn.

    >>> wine()
    Source('wine', x=(178, 13) torch.float32, 3 classes)
    """
    from sklearn.datasets import load_wine

    return _table(WINE, load_wine())


def iris(data_dir: str | Path | None = None) -> Source:
    """Iris: 150 flowers of three species, 4 lengths and widths; embedded in scikit-learn.

    >>> iris()
    Source('iris', x=(150, 4) torch.float32, 3 classes)
    """
    from sklearn.datasets import load_iris

    return _table(IRIS, load_iris())


def diabetes(data_dir: str | Path | None = None) -> Source:
    """Diabetes: 442 patients, 10 features, and the progression of the disease in a year; embedded in scikit-learn.

    >>> diabetes()
    Source('diabetes', x=(442, 10) torch.float32, regression)
    """
    from sklearn.datasets import load_diabetes

    return _table(DIABETES, load_diabetes())


def _table(about: About, bunch: Any) -> Source:
    x, classes = bunch.data.astype(np.float32), tuple(str(name) for name in getattr(bunch, "target_names", ()))
    y = bunch.target.astype(np.int64 if classes else np.float32)
    return about.source(
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=classes,
        checksum=content_checksum(x, y),
        kind="table",
        features=tuple(str(name) for name in bunch.feature_names),
    )
