"""``fit``: rounds, cohorts, evaluation, callbacks and checkpoints around any algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Adapts, Algorithm, DivergenceError, NoReplyError
from archipel.core import keys
from archipel.core.checks import one_of
from archipel.core.groups import Groups, numbered
from archipel.core.interruption import interruption
from archipel.core.progress import RoundBar
from archipel.core.sampling import Cohort, Full
from archipel.core.trees import PerClient, finite
from archipel.data.federation import Federation
from archipel.engines.auto import choose
from archipel.engines.carrier import Carrier, log
from archipel.engines.handle import Handle, Ledger, OnError
from archipel.engines.setting import DEFAULT, Setting
from archipel.runs.answers import AdaptStep
from archipel.runs.arguments import check_counts, check_parts
from archipel.runs.callbacks import Callback, Moment
from archipel.runs.evaluate import evaluate
from archipel.runs.facts import Facts
from archipel.runs.folder import RunFolder
from archipel.runs.identity import describe
from archipel.runs.run import Run
from archipel.states.placement import store_in
from archipel.states.table import States

REMEMBERED = 20
"""Rounds of which the largest reply is remembered, to name who sent it where the run diverges later."""


def fit(
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    cohort: Cohort | None = None,
    seed: int = 0,
    setting: Setting = DEFAULT,
    evaluate_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = True,
    answers: Callable[[int, int], bool] | None = None,
    until: int | None = None,
    groups: Groups | None = None,
    on_error: OnError = "stop",
) -> Run:
    """Train a federation.

    The same seed gives the same bits for any number of workers, any evaluation interval, and across a stop and a
    resumption; engines that batch agree with the loop up to rounding.

    Args:
        algorithm: what to run.
        federation: on what.
        rounds: T, the number of rounds; schedules run over them.
        cohort: who takes part in each round; default: everybody.
        seed: of everything random in the run.
        setting: how the run is carried out, as ``Setting(engine="threads", device="cuda")``: engine, workers, device,
            precision, and where the clients' states are kept.
        evaluate_every: rounds between evaluations; default: only the last model. The last is always evaluated.
        callbacks: called after each round.
        folder: where checkpoints and ``metrics.jsonl`` go; it is locked while the run lasts. Default: nothing is
            written.
        checkpoint_every: rounds between checkpoints. Ctrl-C and SIGTERM end the run after the round in progress, with a
            checkpoint; a second one ends it at once.
        resume: continue from the folder's checkpoint if it is of the same run; otherwise start anew.
        answers: ``(round, client) → bool``, whether a client answers; for simulating failures.
        until: stop after this round, as an interruption would, and evaluate there; default: ``rounds``.
        groups: the edges of a hierarchy, for methods of three tiers: names or numbers of each edge's clients, as in
            ``[["Paris", "Lyon"], ["Oslo"]]``, every client at exactly one; default: there are none.
        on_error: what an exception in a client's step does, and a reply unlike the others: ``"stop"`` ends the run with
            the client and the step named; ``"drop"`` leaves the client out of the round, as one that does not answer.

    Returns:
        The run: last states, history and metrics.

    Raises:
        ValueError: a value out of range, a folder that holds a different run, or one that another process writes to.
        TypeError: an argument of the wrong type.
        DivergenceError: the server's state, or every reply, holds NaN or infinities. The last checkpoint is unchanged,
            and the state before the round is in the folder's subfolder ``diverged``.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the checkpoint is written.
    """
    check_counts(rounds=rounds, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, until=until)
    check_parts(algorithm, federation, cohort, seed, setting)
    one_of("fit", "on_error", on_error, "stop", "drop")
    torch.set_num_threads(1)
    edges = () if groups is None else numbered(groups, [client.name for client in federation.clients])
    identity = {
        "rounds": rounds,
        "seed": seed,
        "federation": federation.fingerprint,
        "algorithm": describe(algorithm),
        "cohort": describe(cohort or Full()),
        "groups": None if groups is None else [edge.tolist() for edge in edges],
    }
    place, last = Path(folder) if folder is not None else None, min(until or rounds, rounds)
    with RunFolder.opened(place, identity) as files:
        states = States(federation.sizes, store_in(setting.states, place))
        carrier, why = choose(algorithm, federation, setting, states)
        log.info("engine: %s; %s", carrier.describe()["engine"], why)
        run = Run(algorithm, {}, [], Facts.of(federation), rounds=rounds, seed=seed)
        with closing(carrier):
            training = _Training(
                run, federation, carrier, rounds, keys.key(seed), cohort or Full(), answers, edges, on_error
            )
            done = files.resume(run, carrier) if resume else 0
            if done == 0:
                training.enrol()
            files.start_metrics(run.history)
            with interruption() as interrupted, RoundBar(type(algorithm).__name__, rounds, done) as bar:
                for round in range(done, last):
                    writes = carrier.states.writes
                    try:
                        record = training.round(round)
                    except DivergenceError as error:
                        raise _diverged(error, files.set_aside(run, carrier)) from None
                    except Exception as error:
                        # Client states that the failed round has changed are not those of the round before.
                        error.add_note(files.rescue(run, carrier, complete=carrier.states.writes == writes))
                        raise
                    ending = round + 1 == last or interrupted.is_set()
                    if ending or (evaluate_every and (round + 1) % evaluate_every == 0):
                        training.evaluate(round, setting, record)
                    run.history.append(record)
                    everyone = training.handle(round, Ledger())
                    moment = Moment(round + 1, record, run.server, everyone, algorithm, federation)
                    for callback in callbacks:
                        callback(moment)
                    files.add_metrics(record)
                    bar.update(record)
                    stopping = interrupted.is_set()
                    if ending or (place and (stopping or (round + 1) % checkpoint_every == 0)):
                        training.adapt(round)
                        files.save(run, carrier)
                    if stopping and round + 1 < last:
                        where = f"; the checkpoint is in {place}; the same call resumes it" if place else ""
                        raise KeyboardInterrupt(f"Stopped after round {round + 1} of {rounds}{where}.")
        run.clients = carrier.states
        return run


@dataclass
class _Training:
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

    def handle(self, round: int, ledger: Ledger, ids: Tensor | None = None) -> Handle:
        """Return a handle on these clients; default: all."""
        ids = torch.arange(len(self.federation)) if ids is None else ids
        names, sizes = self.run.facts.names, self.federation.sizes
        return Handle(
            self.carrier, ids, sizes, round, self.rounds, ledger, self.answers, self.edges, names=names,
            on_error=self.on_error,
        )  # fmt: skip

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
        value, when, who = max([*self.largest, (value, round + 1, self.run.facts.names[client])])
        suspect = f" The largest value in recent replies is {value:.3g}, of {who} in round {when}." if value else ""
        return DivergenceError(f"After round {round + 1}: {error}{left_out}{suspect}")

    def _record(self, round: int, info: dict[str, Any], ledger: Ledger, cohort: int, seconds: float) -> dict[str, Any]:
        record: dict[str, Any] = {"round": round + 1}
        record |= {name: value.tolist() if isinstance(value, Tensor) else value for name, value in info.items()}
        record |= {"cohort": cohort, "uplink": ledger.uplink, "downlink": ledger.downlink}
        record["seconds"] = float(f"{seconds:.4g}")
        if ledger.dropped:
            record["dropped"] = {self.run.facts.names[i]: why for i, why in ledger.dropped.items()}
            log.warning("round %d: left out: %s", round + 1, self._names(ledger.dropped))
        return record

    def _names(self, dropped: dict[int, str]) -> str:
        return "; ".join(f"{self.run.facts.names[i]} ({why})" for i, why in dropped.items())

    def adapt(self, round: int) -> None:
        """Let every client keep its adapted model, the one that an evaluation after this round measures."""
        algorithm, ledger = self.run.algorithm, Ledger()
        if isinstance(algorithm, Adapts) and self._keeps_adapted:
            message, key = {"server": self.run.server}, keys.fold(self.root, "eval", round)
            replace(self.handle(round, ledger), answers=None).apply(AdaptStep(algorithm).keep, message, key)
            self.run.unadapted = sorted(ledger.dropped)
            if ledger.dropped:
                log.warning("round %d: no adapted models of: %s", round + 1, self._names(ledger.dropped))

    @property
    def _keeps_adapted(self) -> bool:
        return isinstance(self.run.algorithm, Adapts) and "adapted" in self.carrier.states[0]

    def evaluate(self, round: int, setting: Setting, record: dict[str, Any]) -> None:
        """Evaluate the models after a round; metrics go into its record, the clients' table into the run."""
        key = keys.fold(self.root, "eval", round)
        clients = self.handle(round, Ledger())
        found = evaluate(self.run.algorithm, self.run.server, clients, self.federation, key, setting)
        record["metrics"], self.run.table = found.metrics, found.clients


def _diverged(error: DivergenceError, kept: Path | None) -> DivergenceError:
    """Add to an error what was kept and what to do."""
    where = f" The state before this round is in {kept}; checkpoints are unchanged." if kept else ""
    return DivergenceError(f"{error}{where} A lower learning rate or gradient clipping (SGD's clip) usually helps.")
