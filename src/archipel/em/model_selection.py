"""Building the estimator of ``archipel em`` from its options, and choosing the number of components by BIC."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sklearn.base import clone

from archipel.compress.compressor import Compressor
from archipel.compress.dithering import QSGD, Dithering
from archipel.compress.natural import Natural
from archipel.compress.sparse import RandK
from archipel.em.client_files import Matrix
from archipel.em.estimator import FederatedModel
from archipel.em.estimators import (
    FederatedBernoulliMixture,
    FederatedFactorModel,
    FederatedGaussianMixture,
    FederatedLatentClass,
    FederatedPoissonMixture,
    FederatedRegressionMixture,
)

FAMILIES: dict[str, type[FederatedModel]] = {
    "gaussian": FederatedGaussianMixture,
    "bernoulli": FederatedBernoulliMixture,
    "latent-class": FederatedLatentClass,
    "poisson": FederatedPoissonMixture,
    "regression": FederatedRegressionMixture,
    "factor": FederatedFactorModel,
}


def build_estimator(
    family: str, settings: dict[str, Any], *, covariance: str, noise: str, personal: bool, compress: str | None
) -> Any:
    """Build the estimator, without its number of components.

    Raises:
        ValueError: an unknown family, or settings that it doesn't have.
    """
    if family not in FAMILIES:
        raise ValueError(f"There is no family {family!r}; there are {', '.join(FAMILIES)}.")
    if covariance != "full" and family != "gaussian":
        raise ValueError(f"--covariance {covariance} is for --family gaussian.")
    if family == "factor":
        if personal:
            raise ValueError("--personal is for mixtures: a factor model has no mixing weights.")
        settings = settings | {"noise": noise}
    else:
        if noise != "isotropic":
            raise ValueError(f"--noise {noise} is for --family factor.")
        settings = settings | {"personal_weights": personal}
    if family == "gaussian":
        settings = settings | {"covariance_type": covariance}
    return FAMILIES[family](**settings, compressor=parse_compressor(compress))


def parse_compressor(text: str | None) -> Compressor | None:
    """Make a compressor from its name and number.

    >>> parse_compressor("dithering:4"), parse_compressor(None)
    (Dithering(levels=4, norm=2.0), None)
    """
    if text is None:
        return None
    name, _, number = text.partition(":")
    if name == "natural" and not number:
        return Natural()
    made: dict[str, Callable[[int], Compressor]] = {"dithering": Dithering, "qsgd": QSGD, "rand-k": RandK}
    if name not in made or not number.isdigit():
        raise ValueError(f"--compress is dithering:LEVELS, qsgd:LEVELS, rand-k:K or natural; given {text!r}.")
    return made[name](int(number))


def component_counts(text: str) -> list[int]:
    """Read the range of numbers of components.

    >>> component_counts("2:4")
    [2, 3, 4]
    """
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ValueError(f"--select is FROM:TO with whole numbers of at least 1, such as 1:10; given {text!r}.")
    return list(range(int(first), int(last) + 1))


def select_components(
    model: Any,
    counts: Sequence[int],
    tables: dict[str, Matrix],
    targets: dict[str, Matrix] | None,
    tell: Callable[[str], None],
) -> tuple[Any, list[dict[str, Any]]]:
    """Fit the model with each number of components, and select the one with the lowest BIC.

    Args:
        model: an estimator.
        counts: numbers of components.
        tables: clients' examples.
        targets: clients' targets, for regressions only.
        tell: called with a line about each fit.

    Returns:
        The selected model, fitted, and a record of each number that was tried.

    Raises:
        ValueError: more components than examples, or more factors than columns; nothing is fitted then.
    """
    factors = isinstance(model, FederatedFactorModel)
    most = next(iter(tables.values())).shape[1] if factors else sum(map(len, tables.values()))
    if max(counts) > most:
        what = ("factors", "columns") if factors else ("components", "examples")
        raise ValueError(f"{max(counts)} {what[0]} are more than the {most} {what[1]}; ask for fewer.")
    best, lowest, tried = None, float("inf"), []
    for count in counts:
        started = time.perf_counter()
        fitted = clone(model).set_params(n_components=count).fit(tables, targets)
        bic = fitted.bic(tables, targets)
        tried.append(
            {
                "components": count,
                "log_likelihood": fitted.lower_bound_,
                "bic": bic,
                "parameters": fitted.n_parameters_,
                "rounds": fitted.n_iter_,
                "converged": fitted.converged_,
                "uplink": fitted.uplink_,
                "downlink": fitted.downlink_,
            }
        )
        seconds = time.perf_counter() - started
        tell(f"{count} components: BIC {bic:,.1f}, {fitted.n_iter_} rounds, {seconds:.1f} s")
        if best is None or bic < lowest:
            best, lowest = fitted, bic
    return best, tried
