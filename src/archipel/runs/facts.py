"""What a trained run must know of its federation to answer queries, without the federation's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from archipel.data.federation import Federation
from archipel.data.inputs import Inputs

FORMAT = 1
"""Version of the JSON form of :class:`Facts`."""


@dataclass(frozen=True)
class Facts:
    """A federation's facts that serving needs.

    Args:
        inputs: shape and normalisation of examples.
        classes: the classes' names in the order of their codes; ``None`` for a regression.
        outputs: K classes, or the number of a regression's targets.
        names: the clients' names.
        sizes: training examples that each client holds.
    """

    inputs: Inputs
    classes: tuple[str, ...] | None
    outputs: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, federation: Federation) -> Facts:
        """Return the facts of a federation."""
        names = tuple(client.name for client in federation.clients)
        return cls(federation.inputs, federation.classes, federation.outputs, names, tuple(federation.sizes.tolist()))

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Facts:
        """Return the facts that :meth:`to_json` wrote.

        Raises:
            ValueError: facts of another format.
        """
        if facts.get("format") != FORMAT:
            raise ValueError(
                f"The run's facts have format {facts.get('format')!r}; this version of archipel reads format {FORMAT}. "
                "Train the run again, or read it with the version that wrote it."
            )
        classes = None if facts["classes"] is None else tuple(facts["classes"])
        return cls(Inputs(**facts["inputs"]), classes, facts["outputs"], tuple(facts["names"]), tuple(facts["sizes"]))

    def to_json(self) -> dict[str, Any]:
        """Return the facts in JSON's types, with the version of their format."""
        return {"format": FORMAT} | asdict(self)

    def check(self, federation: Federation) -> None:
        """Refuse a federation that models of these facts can't be evaluated on.

        Raises:
            ValueError: other clients, another shape or storage of examples, other classes or numbers of targets.
        """
        other = Facts.of(federation)
        if other.names != self.names:
            raise ValueError(
                f"{federation.name!r} has the clients {_listed(other.names)}; the run has {_listed(self.names)}. Each "
                "client is evaluated with its own model, so give the same clients in the same order."
            )
        for what in ("kind", "shape", "dtype", "scale"):
            here, there = getattr(self.inputs, what), getattr(other.inputs, what)
            if here != there:
                raise ValueError(
                    f"Examples of {federation.name!r} have {what} {there}; the run was trained on {what} {here}. "
                    "Prepare them in the same way."
                )
        if other.classes != self.classes:
            raise ValueError(
                f"{federation.name!r} has {_targets(other)}; the run was trained for {_targets(self)}. If they mean "
                "the same, make the federation with classes=[…] in the run's order (run.facts.classes)."
            )
        if other.outputs != self.outputs:
            raise ValueError(
                f"{federation.name!r} has {other.outputs} targets; the run was trained for {self.outputs}."
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")


def _targets(facts: Facts) -> str:
    return "numbers as targets" if facts.classes is None else f"the classes {_listed(facts.classes)}"
