"""The methods of ``archipel bench consensus``, with their settings for a learning rate and a penalty.

All make the same number of local steps on batches of the same size, plain SGD at a constant rate, and all clients take
part in every round. A method with a penalty tries a few rates with a few penalties. A method without one tries as many
rates as the others try combinations, so that every method is tuned with equal effort.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from archipel.experiments.explain import nearest

STEPS, BATCH = 5, 32
"""Local steps a round, and examples a step."""
RATES = (0.1, 0.3, 0.03, 0.2, 0.05, 0.5, 0.02, 1.0, 0.01)
"""Learning rates, in the order of trial."""

Settings = dict[str, Any]


@dataclass(frozen=True)
class Entrant:
    """A method.

    Args:
        title: its name in tables.
        make: maps learning rate, penalty and number of clients to its section of a configuration.
        penalties: values of its penalty in the order of trial; empty: it has no penalty.
        symbol: the penalty's.
    """

    title: str
    make: Callable[[float, float, int], Settings]
    penalties: tuple[float, ...] = ()
    symbol: str = ""

    def trials(self, rates: int, penalties: int) -> list[tuple[float, float | None]]:
        """Return the learning rates and penalties to try, rates · penalties of them.

        >>> ENTRANTS["fedavg"].trials(2, 2)
        [(0.1, None), (0.3, None), (0.03, None), (0.2, None)]
        >>> ENTRANTS["fedprox"].trials(2, 2)
        [(0.1, 0.1), (0.1, 0.01), (0.3, 0.1), (0.3, 0.01)]
        """
        if not self.penalties:
            return [(rate, None) for rate in RATES[: rates * penalties]]
        return [(rate, penalty) for rate in RATES[:rates] for penalty in self.penalties[:penalties]]

    def section(self, rate: float, penalty: float | None, clients: int) -> Settings:
        """Return the algorithm's section of a run's configuration."""
        return self.make(rate, penalty or 0.0, clients)


def local(rate: float, steps: int = STEPS) -> Settings:
    """Return the settings of plain SGD."""
    return {"lr": rate, "steps": steps, "batch": BATCH, "momentum": 0.0, "schedule": "constant"}


def plain(name: str, **settings: Any) -> Callable[[float, float, int], Settings]:
    """Return the settings of a method without a penalty."""
    return lambda rate, penalty, clients: {"name": name, "local": local(rate)} | settings


def penalised(name: str, field: str = "penalty", **settings: Any) -> Callable[[float, float, int], Settings]:
    """Return the settings of a method with a penalty in the given field."""
    return lambda rate, penalty, clients: {"name": name, "local": local(rate), field: penalty} | settings


def pooled(rate: float, penalty: float, clients: int) -> Settings:
    """Return Pooled's settings: as many steps on the pool as all clients make together."""
    return {"name": "pooled", "local": local(rate, STEPS * clients)}


def tuned(rate: float, penalty: float, clients: int) -> Settings:
    """Return FedAvgFT's settings: one more round of steps at each client before evaluation."""
    tuning = {"lr": rate, "steps": STEPS, "batch": BATCH, "momentum": 0.0}
    return {"name": "fedavgft", "local": local(rate), "tuning": tuning}


def ditto(rate: float, penalty: float, clients: int) -> Settings:
    """Return Ditto's settings: as many steps of the personal model as of the shared one."""
    inner = {"name": "fedavg", "local": local(rate)}
    return {"name": "ditto", "inner": inner, "personal": local(rate), "penalty": penalty}


def envelopes(name: str) -> Callable[[float, float, int], Settings]:
    """Return settings of pFedMe and pFedMac with one local round and ηλ = 1: θ ← mean of the personal models."""
    return lambda rate, penalty, clients: {
        "name": name,
        "local": local(rate),
        "penalty": penalty,
        "rate": 1 / penalty,
        "local_rounds": 1,
    }


def loopless(rate: float, penalty: float, clients: int) -> Settings:
    """Return L2SGD's settings: on average as many local steps at the same rate, p = 1/steps and η = rate · K(1 − p)."""
    p = 1 / STEPS
    return {"name": "l2sgd", "local": local(rate * clients * (1 - p), 1), "penalty": penalty, "p": p}


def fusion(rate: float, penalty: float, clients: int) -> Settings:
    """Return FPFC's settings: ξ = λ/10, and cluster means as the final models."""
    return {"name": "fpfc", "local": local(rate), "penalty": penalty, "xi": penalty / 10, "final": "clusters"}


WEAK = (0.1, 0.01, 1.0)
ENTRANTS: dict[str, Entrant] = {
    "local": Entrant("Local", plain("local")),
    "pooled": Entrant("Pooled", pooled),
    "fedavg": Entrant("FedAvg", plain("fedavg")),
    "fedavgft": Entrant("FedAvgFT", tuned),
    "fedprox": Entrant("FedProx", penalised("fedprox"), WEAK, "μ"),
    "feddyn": Entrant("FedDyn", penalised("feddyn"), WEAK, "μ"),
    "fedsplit": Entrant("FedSplit", penalised("fedsplit", "s"), (3.0, 1.0, 10.0), "s"),
    "scaffold": Entrant("SCAFFOLD", plain("scaffold")),
    "proxskip": Entrant("ProxSkip", plain("proxskip", p=1 / STEPS)),
    "l2sgd": Entrant("L2SGD", loopless, (0.1, 0.02, 0.5), "λ"),
    "pfedme": Entrant("pFedMe", envelopes("pfedme"), (1.0, 0.1, 10.0), "λ"),
    "ditto": Entrant("Ditto", ditto, WEAK, "μ"),
    "apfl": Entrant("APFL", penalised("apfl", "alpha"), (0.5, 0.25, 0.75), "α"),
    "pfedmac": Entrant("pFedMac", envelopes("pfedmac"), (0.03, 0.01, 0.1), "λ"),
    "fpfc": Entrant("FPFC", fusion, (0.3, 0.1, 1.0), "λ"),
    "fedper": Entrant("FedPer", plain("fedper")),
    "fedcr": Entrant("FedCR", penalised("fedcr", "beta"), (0.01, 0.001, 0.1), "β"),
}


def entrants(names: str | None) -> list[str]:
    """Return the methods that a text names, or all.

    Raises:
        ValueError: an unknown name.
    """
    return list(ENTRANTS) if names is None else listed(names, ENTRANTS, "method")


def listed(names: str, known: Collection[str], what: str) -> list[str]:
    """Split names at commas, in lower case, each once.

    >>> listed("Ditto, apfl,ditto", ENTRANTS, "method")
    ['ditto', 'apfl']

    Raises:
        ValueError: an unknown name.
    """
    asked = list(dict.fromkeys(name.strip().lower() for name in names.split(",")))
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(
            f"There is no {what} {unknown[0]!r} in this benchmark.{nearest(unknown[0], known)} There are: "
            f"{', '.join(known)}."
        )
    return asked
