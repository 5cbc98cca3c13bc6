"""``fit``: rounds, cohorts, evaluation, callbacks and checkpoints around any algorithm."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import torch
from rich.console import Console

from archipel.algorithm import Algorithm, DivergenceError
from archipel.core import keys
from archipel.core.checks import one_of
from archipel.core.groups import Groups, numbered
from archipel.core.interruption import interruption
from archipel.core.progress import RoundBar
from archipel.core.sampling import Cohort, Full
from archipel.data.federation import Federation
from archipel.engines.auto import choose
from archipel.engines.carrier import log
from archipel.engines.group import rank, told
from archipel.engines.handle import OnError
from archipel.engines.ranks import Ranks
from archipel.engines.setting import DEFAULT, Setting
from archipel.runs.arguments import check_counts, check_parts
from archipel.runs.callbacks import Callback
from archipel.runs.facts import Facts
from archipel.runs.folder import RunFolder
from archipel.runs.identity import describe
from archipel.runs.run import Run
from archipel.runs.training import Training
from archipel.states.encoding import decode, encode
from archipel.states.placement import store_in
from archipel.states.table import States


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
        callbacks: called after each round; one that returns True ends the run (:class:`archipel.EarlyStopping`).
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
    follows = setting.engine == "distributed" and rank() > 0
    if follows:
        place = None  # the first rank writes the files, and shows progress
    console = Console(quiet=True) if follows else None
    with RunFolder.opened(place, identity) as files:
        states = States(federation.sizes, store_in(setting.states, place))
        carrier, why = choose(algorithm, federation, setting, states)
        log.info("engine: %s; %s", carrier.describe()["engine"], why)
        run = Run(algorithm, {}, [], Facts.of(federation), rounds=rounds, seed=seed)
        with closing(carrier):
            training = Training(
                run, federation, carrier, rounds, keys.key(seed), cohort or Full(), answers, edges, on_error
            )
            done = files.resume(run, carrier) if resume else 0
            if isinstance(carrier, Ranks):
                carrier.compare(identity)
                done = _continued(run, carrier, done)
            if done == 0:
                training.enrol()
            else:
                log.info("resumed after round %d of %d", done, rounds)
            files.start_metrics(run.history)
            method = type(algorithm).__name__
            files.tell(
                "started", round=done, rounds=rounds, method=method, clients=len(federation), process=os.getpid()
            )
            if done and run.history[-1].get("stopped"):
                last = done
            with (
                interruption() as interrupted,
                RoundBar(method, rounds, done, console) as bar,
            ):
                for round in range(done, last):
                    writes = carrier.states.writes
                    try:
                        record = training.round(round)
                    except DivergenceError as error:
                        training.bring_home()
                        raise _diverged(error, files.set_aside(run, carrier)) from None
                    except Exception as error:
                        # Client states that the failed round has changed are not those of the round before.
                        complete = carrier.states.writes == writes and not isinstance(carrier, Ranks)
                        error.add_note(files.rescue(run, carrier, complete=complete))
                        raise
                    ending = round + 1 == last or training.agreed(interrupted.is_set())
                    if ending or (evaluate_every and (round + 1) % evaluate_every == 0):
                        training.evaluate(round, setting, record)
                    run.history.append(record)
                    for callback in callbacks:
                        if callback(training.moment(round, files)) and not ending:
                            ending = record["stopped"] = True
                            if "metrics" not in record:
                                training.evaluate(round, setting, record)
                    files.add_metrics(record, training.who)
                    bar.update(record)
                    stopping = training.agreed(interrupted.is_set())
                    if ending or (folder is not None and (stopping or (round + 1) % checkpoint_every == 0)):
                        training.adapt(round)
                        training.bring_home()
                        files.save(run, carrier)
                    if stopping and round + 1 < last:
                        where = f"; the checkpoint is in {place}; the same call resumes it" if place else ""
                        raise KeyboardInterrupt(f"Stopped after round {round + 1} of {rounds}{where}.")
                    if record.get("stopped"):
                        break
            if isinstance(carrier, Ranks):
                carrier.report()
        run.clients = carrier.states
        return run


def _continued(run: Run, ranks: Ranks, done: int) -> int:
    """Give every rank what the first has read from a checkpoint; return the number of rounds done."""
    done, server, run.history, run.table, run.unadapted = told(
        (done, encode(run.server), run.history, run.table, run.unadapted)
    )
    if done:
        run.server = decode(server)
        ranks.spread()
    return int(done)


def _diverged(error: DivergenceError, kept: Path | None) -> DivergenceError:
    """Add to an error what was kept and what to do."""
    where = f" The state before this round is in {kept}; checkpoints are unchanged." if kept else ""
    return DivergenceError(f"{error}{where} A lower learning rate or gradient clipping (SGD's clip) usually helps.")
