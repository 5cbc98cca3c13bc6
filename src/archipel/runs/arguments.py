"""Checks of ``fit``'s arguments: what was given, what is allowed, what to do."""

from __future__ import annotations

from dataclasses import is_dataclass

from archipel.algorithm import Algorithm
from archipel.core.checks import check_settings, kind_of, positive_int
from archipel.data.federation import Federation
from archipel.engines.setting import Setting
from archipel.learning.contents import find_all
from archipel.learning.networks import Network
from archipel.learning.tasks import Supervised


def check_counts(**counts: int | None) -> None:
    """Raise a ValueError for anything but whole numbers of at least 1, or None."""
    positive_int("fit", **{name: value for name, value in counts.items() if value is not None})


def check_parts(algorithm: object, federation: object, cohort: object, seed: object, setting: object) -> None:
    """Raise a TypeError or ValueError for parts of a run that are not what they should be, or do not fit together."""
    for what, value, kind in (("an Algorithm", algorithm, Algorithm), ("a Federation", federation, Federation)):
        if not isinstance(value, kind):
            raise TypeError(f"fit takes an algorithm and a federation; given {kind_of(value)} instead of {what}.")
    assert isinstance(algorithm, Algorithm)
    assert isinstance(federation, Federation)
    if is_dataclass(algorithm):
        check_settings(algorithm)
    _check_fit(algorithm, federation)
    if cohort is not None and not hasattr(cohort, "draw"):
        raise TypeError(f"fit's cohort must be Full(), Sample(…) or Bernoulli(…); given {cohort!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"fit's seed must be a whole number of 64 bits; given {seed!r}.")
    if not isinstance(setting, Setting):
        raise TypeError(f"fit's setting must be a Setting, such as Setting(engine='loop'); given {kind_of(setting)}.")


def _check_fit(algorithm: Algorithm, federation: Federation) -> None:
    """Check that networks were made for examples like the federation's, and tasks for its targets."""
    shape = tuple(federation.inputs.shape)
    for network in find_all(algorithm, Network):
        if network.inputs is not None and tuple(network.inputs.shape) != shape:
            raise ValueError(
                f"{type(algorithm).__name__}'s {type(network.module).__name__} was made for examples of shape "
                f"{tuple(network.inputs.shape)}; those of {federation.name!r} have {shape}. Make its task, and its "
                "router, with the federation that it runs on."
            )
    for task in find_all(algorithm, Supervised):
        if task.outputs != federation.outputs:
            kind = "targets" if federation.classes is None else "classes"
            raise ValueError(
                f"{type(algorithm).__name__}'s task has {task.outputs} outputs; {federation.name!r} has "
                f"{federation.outputs} {kind}. Make the task with the federation that it runs on."
            )
