"""The rounds of a run, on the carrier that runs its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.algorithm import Adapts, DivergenceError, NoReplyError
from archipel.core import keys
from archipel.core.checks import clean
from archipel.core.sampling import Cohort
from archipel.core.trees import PerClient, finite
from archipel.data.federation import Federation
from archipel.engines.carrier import Carrier, log
from archipel.engines.group import rank
from archipel.engines.handle import Handle, Ledger, OnError
from archipel.engines.ranks import Ranks
from archipel.engines.setting import Setting
from archipel.engines.shards import shards_of
from archipel.runs.answers import AdaptStep
from archipel.runs.callbacks import Moment
from archipel.runs.evaluate import evaluate
from archipel.runs.folder import RunFolder
from archipel.runs.run import Run

REMEMBERED = 20
"""Rounds of which the largest reply is remembered, to name who sent it where the run diverges later."""


@dataclass
class Training:
    """The algorithm's rounds on a carrier; the run's server state and the carrier's client states move along.

    Args:
        run: algorithm, server state and history.
        federation: whose clients.
        carrier: runs their steps.
        rounds: of the whole run.
        root: the key of everything random.
        cohort: who takes part.
        answers: whether a client answers in a round.
        edges: each group's clients.
        on_error: whether an exception of a client's step stops the run.
        opening: traffic before the first round, which is counted in it.
        largest: the largest value in replies of each of the last rounds, with the round and the client.
        who: the names of the clients that were drawn for the last round.
    """

    run: Run
    federation: Federation
    carrier: Carrier
    rounds: int
    root: Tensor
    cohort: Cohort
    answers: Callable[[int, int], bool] | None
    edges: tuple[Tensor, ...]
    on_error: OnError
    opening: Ledger = field(default_factory=Ledger)
    largest: list[tuple[float, int, str]] = field(default_factory=list)
    who: list[str] = field(default_factory=list)

    def handle(self, round: int, ledger: Ledger, ids: Tensor | None = None) -> Handle:
        """Return a handle on these clients; default: all."""
        ids = torch.arange(len(self.federation)) if ids is None else ids
        names, sizes = self.run.facts.names, self.federation.sizes
        return Handle(
            self.carrier, ids, sizes, round, self.rounds, ledger, self.answers, self.edges, names=names,
            on_error=self.on_error, shards=self._shards,
        )  # fmt: skip

    @cached_property
    def _shards(self) -> NDArray[np.int64]:
        return shards_of(self.federation.sizes)

    def agreed(self, wish: bool) -> bool:
        """Whether any rank wishes so."""
        return self.carrier.agreed(wish) if isinstance(self.carrier, Ranks) else wish

    def bring_home(self) -> None:
        """Have all clients' states where they are written to files."""
        if isinstance(self.carrier, Ranks):
            self.carrier.bring_home()

    def enrol(self) -> None:
        """Make the first states, of the server and of every client."""
        algorithm, ledger = self.run.algorithm, Ledger()
        everyone = replace(self.handle(0, ledger), answers=None, on_error="stop")
        self.run.server = algorithm.init_server(everyone, keys.fold(self.root, "server"))
        # What a method asks of its clients at the start belongs to the first round; enrolment itself is no traffic.
        self.opening = Ledger(ledger.uplink, ledger.downlink)
        message = {"server": self.run.server, "index": PerClient(everyone.ids)}
        everyone.apply(algorithm.enrol, message, keys.fold(self.root, "enrol"))
        if ledger.dropped:
            names = ", ".join(self.run.facts.names[i] for i in ledger.dropped)
            raise DivergenceError(f"Nothing can start: the first state holds NaN or infinities at {names}.")

    def round(self, round: int) -> dict[str, Any]:
        """Run one round, and return its record.

        Raises:
            DivergenceError: the new server state, or every reply, holds NaN or infinities; the run keeps its state.
        """
        started, ledger = time.perf_counter(), Ledger() if round else self.opening
        ids = self.cohort.draw(self.federation.sizes, keys.fold(self.root, "cohort", round))
        clients = self.handle(round, ledger, ids)
        self.who = [self.run.facts.names[i] for i in ids.tolist()]
        info: dict[str, Any] = {}
        try:
            with torch.no_grad():
                server, info = self.run.algorithm.round(self.run.server, clients, keys.fold(self.root, "round", round))
            if not bool(finite(server)):
                raise DivergenceError("the server's state holds NaN or infinities.")
            self.run.server = server
        except NoReplyError as error:
            if "NaN" in str(error):
                raise self._divergence(error, round, ledger) from None
            log.warning("%s The server keeps its state.", error)
        except DivergenceError as error:
            raise self._divergence(error, round, ledger) from None
        value, client = ledger.largest
        self.largest = [*self.largest, (value, round + 1, self.run.facts.names[client])][-REMEMBERED:]
        self.run.unadapted = list(range(len(self.federation))) if self._keeps_adapted else []
        return self._record(round, info, ledger, len(ids), time.perf_counter() - started)

    def _divergence(self, error: Exception, round: int, ledger: Ledger) -> DivergenceError:
        left_out = f" Left out: {self._names(ledger.dropped)}." if ledger.dropped else ""
        value, client = ledger.largest
        value, when, name = max([*self.largest, (value, round + 1, self.run.facts.names[client])])
        who = clean(name)
        suspect = f" The largest value in recent replies is {value:.3g}, of {who} in round {when}." if value else ""
        return DivergenceError(f"After round {round + 1}: {error}{left_out}{suspect}")

    def _record(self, round: int, info: dict[str, Any], ledger: Ledger, cohort: int, seconds: float) -> dict[str, Any]:
        record: dict[str, Any] = {"round": round + 1}
        record |= {name: value.tolist() if isinstance(value, Tensor) else value for name, value in info.items()}
        record |= {"cohort": cohort, "uplink": ledger.uplink, "downlink": ledger.downlink}
        record["seconds"] = float(f"{seconds:.4g}")
        if ledger.dropped:
            record["dropped"] = {self.run.facts.names[i]: why for i, why in sorted(ledger.dropped.items())}
            log.warning("round %d: left out: %s", round + 1, self._names(ledger.dropped))
        return record

    def _names(self, dropped: dict[int, str]) -> str:
        return clean("; ".join(f"{self.run.facts.names[i]} ({why})" for i, why in dropped.items()))

    def adapt(self, round: int) -> None:
        """Let every client keep its adapted model, the one that an evaluation after this round measures."""
        algorithm, ledger = self.run.algorithm, Ledger()
        if isinstance(algorithm, Adapts) and self._keeps_adapted:
            message, key = {"server": self.run.server}, keys.fold(self.root, "eval", round)
            replace(self.handle(round, ledger), answers=None).apply(AdaptStep(algorithm).keep, message, key)
            self.run.unadapted = sorted(ledger.dropped)
            if ledger.dropped:
                log.warning("round %d: no adapted models of: %s", round + 1, self._names(ledger.dropped))

    def moment(self, round: int, files: RunFolder) -> Moment:
        """Return what callbacks see after a round."""

        def save(place: Path) -> None:
            self.adapt(round)
            self.bring_home()
            if not (isinstance(self.carrier, Ranks) and rank()):  # the first rank writes the files
                files.save_to(place, self.run, self.carrier)

        run, everyone = self.run, self.handle(round, Ledger())
        return Moment(
            round + 1, run.history[-1], run.server, everyone, run.algorithm, self.federation, run.history, run.rounds,
            save,
        )  # fmt: skip

    @property
    def _keeps_adapted(self) -> bool:
        names = self.carrier.states.shapes or {}
        return isinstance(self.run.algorithm, Adapts) and any(name.partition("/")[0] == "adapted" for name in names)

    def evaluate(self, round: int, setting: Setting, record: dict[str, Any]) -> None:
        """Evaluate the models after a round; metrics go into its record, the clients' table into the run."""
        key = keys.fold(self.root, "eval", round)
        clients = self.handle(round, Ledger())
        found = evaluate(self.run.algorithm, self.run.server, clients, self.federation, key, setting)
        record["metrics"], self.run.table = found.metrics, found.clients
