"""Every method's settings for a comparison: the base run's solver and networks, and what is tuned."""

from __future__ import annotations

from typing import Any

from archipel.core.checks import hints_of
from archipel.experiments.comparing.assessing import solver_of
from archipel.experiments.config import RunConfig
from archipel.experiments.explain import nearest
from archipel.experiments.methods import SECTIONS, MethodSection, SolverSection, kind_named, section_of
from archipel.experiments.own_code import import_own, is_own
from archipel.experiments.reading import validate
from archipel.experiments.sections import RouterSection

RATES = (1e-3, 1.0)
"""Learning rates, tuned on a logarithmic scale; all solvers of a method share one."""
TUNED: dict[str, tuple[float, float, bool]] = {
    "penalty": (1e-3, 10.0, True),
    "alpha": (0.05, 0.95, False),
    "beta": (1e-4, 1e-1, True),
    "s": (0.3, 30.0, True),
}
"""Other settings that are tuned where a method has them: lowest, highest, and whether on a logarithmic scale."""

Settings = dict[str, Any]


def entry(base: RunConfig, method: str) -> Settings:
    """Return a method's section: the base run's own if it is its method, else with the base run's solver and networks.

    Args:
        base: whose data, encoder and rounds all methods get.
        method: the name of a method, or ``my_module:MyMethod``.

    Raises:
        ValueError: there is no such method.

    >>> from archipel.experiments.reading import read_config
    >>> entry(read_config("heart-fedavg"), "ditto")["personal"]["epochs"]
    2
    """
    if method == base.algorithm.name:
        return base.algorithm.model_dump()
    if is_own(method):
        import_own(method.partition(":")[0])
    elif method not in SECTIONS:
        raise ValueError(f"There is no method {method!r}.{nearest(method, SECTIONS)} There are: {', '.join(SECTIONS)}.")
    solver = solver_of(base.algorithm)
    settings: Settings = {"name": method}
    for name, field in section_of(method).model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, SolverSection) and solver is not None:
            settings[name] = solver
        elif isinstance(kind, type) and issubclass(kind, RouterSection):
            settings[name] = _router(base)
        elif isinstance(field.get_default(call_default_factory=True), MethodSection):
            settings[name] = {"name": "fedavg"} | ({} if solver is None else {"local": solver})
    return settings


def _router(base: RunConfig) -> Settings:
    """Return the base run's router, or its encoder again with fewer features."""
    for name in type(base.algorithm).model_fields:
        if isinstance(value := getattr(base.algorithm, name), RouterSection):
            return value.model_dump()
    encoder = base.encoder.model_dump()
    return encoder | {"features": min(8, encoder["features"])}


def space(method: str) -> dict[str, tuple[float, float, bool]]:
    """Return what is tuned of a method: lowest and highest value, and whether on a logarithmic scale.

    >>> space("ditto")
    {'lr': (0.001, 1.0, True), 'penalty': (0.001, 10.0, True)}
    """
    hints: Any = hints_of(kind_named(method))  # type: ignore[arg-type]
    return {"lr": (*RATES, True)} | {name: TUNED[name] for name in TUNED if name in hints}


def defaults(settings: Settings, method: str, base: RunConfig) -> dict[str, float]:
    """Return the values of a method's tuned settings before any tuning, cut to their ranges."""
    section = section_of(method).model_validate(settings)
    solver = solver_of(section)
    values: dict[str, Any] = {"lr": None if solver is None else solver["lr"]}
    values |= {name: getattr(section, name, None) for name in TUNED}
    return {
        name: min(max(float(values[name]), low), high)
        for name, (low, high, _) in space(method).items()
        if isinstance(values.get(name), int | float)
    }


def tuned(settings: Settings, chosen: dict[str, float]) -> Settings:
    """Return a section with tuned settings put in; the learning rate goes into every solver, also of inner methods.

    >>> tuned({"name": "ditto", "personal": {"lr": 1.0}, "inner": {"local": {"lr": 1.0}}}, {"lr": 0.5, "penalty": 2.0})
    {'name': 'ditto', 'personal': {'lr': 0.5}, 'inner': {'local': {'lr': 0.5}}, 'penalty': 2.0}
    """
    rate = chosen.get("lr")

    def put(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: rate if name == "lr" and rate is not None else put(inner) for name, inner in value.items()}

    rest = {name: value for name, value in chosen.items() if name != "lr"}
    return {**put(settings), **rest}


def configured(base: RunConfig, section: Settings, seed: int) -> RunConfig:
    """Return the run of a method with one seed, which also divides the data."""
    settings = base.model_dump()
    settings["data"] |= {"seed": seed}
    settings |= {"name": section["name"].rpartition(":")[2], "seed": seed, "algorithm": section, "refit": "never"}
    settings |= {"evaluate_every": None, "groups": None, "workers": 1, "stopping": None}
    return validate(settings, f"the settings of {section['name']}")
