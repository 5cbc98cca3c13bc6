"""``fit``: rounds, cohorts, evaluation, callbacks and checkpoints around any algorithm."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archipel.algorithm import Algorithm, Clients, DivergenceError, NoReplyError
from archipel.core import keys
from archipel.core.checks import kind_of
from archipel.core.groups import Groups, numbered
from archipel.core.progress import RoundBar
from archipel.core.sampling import Cohort, Full
from archipel.core.trees import PerClient, Tree, finite
from archipel.data.federation import Federation
from archipel.engines.auto import choose
from archipel.engines.carrier import Carrier, log
from archipel.engines.handle import Handle, Ledger
from archipel.engines.setting import DEFAULT, Setting
from archipel.learning.networks import Network, held
from archipel.learning.sgd import SGD
from archipel.learning.solver_checks import solver
from archipel.learning.tasks import Supervised, Task
from archipel.runs.evaluate import evaluate
from archipel.runs.facts import Facts
from archipel.runs.run import Run
from archipel.states.checkpoint import Checkpoint
from archipel.states.placement import store_in
from archipel.states.table import States


@dataclass(frozen=True)
class Moment:
    """What a callback is given after each round.

    Args:
        round: rounds done, from 1.
        record: the round's entry in the history.
        server: the server's state.
        clients: a handle on everyone; evaluating through it changes nothing.
        algorithm: what runs.
        federation: on what.
    """

    round: int
    record: dict[str, Any]
    server: Tree
    clients: Clients
    algorithm: Algorithm
    federation: Federation


Callback = Callable[[Moment], None]


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
) -> Run:
    """Trains a federation.

    The same seed gives the same bits for any number of workers, any evaluation interval, and across a stop and a
    resumption; engines that batch agree with the loop up to rounding.

    Args:
        algorithm: what to run.
        federation: on what.
        rounds: T, how many rounds; schedules run over them.
        cohort: who takes part in each round; default: everybody.
        seed: of everything random in the run.
        setting: how the run is carried out, as ``Setting(engine="threads", device="cuda")``: engine, workers, device,
            precision, and where the clients' states are kept.
        evaluate_every: rounds between evaluations; default: only the last model. The last is always evaluated.
        callbacks: called after each round.
        folder: where checkpoints and ``metrics.jsonl`` go; default: nothing is written.
        checkpoint_every: rounds between checkpoints. Ctrl-C ends after the round under way, with a checkpoint.
        resume: go on from the folder's checkpoint where there is one of the same run; otherwise start anew.
        answers: ``(round, client) → bool``, whether a client answers; for simulating failures.
        until: stop after this round, as an interruption would, and evaluate there; default: ``rounds``.
        groups: the edges of a hierarchy, for methods of three tiers: names or numbers of each edge's clients, as in
            ``[["Paris", "Lyon"], ["Oslo"]]``, every client at exactly one; default: there are none.

    Returns:
        The run: last states, history and metrics.

    Raises:
        ValueError: a value out of range, or the folder holds a different run.
        TypeError: an argument that isn't what it should be.
        DivergenceError: NaN or infinities everywhere; what was good is in the checkpoint.
        KeyboardInterrupt: after Ctrl-C, once the checkpoint is written.
    """
    _check(rounds=rounds, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, until=until)
    _check_parts(algorithm, federation, cohort, seed)
    torch.set_num_threads(1)
    edges = () if groups is None else numbered(groups, [client.name for client in federation.clients])
    root = keys.key(seed)
    sizes, cohort = federation.sizes, cohort or Full()
    place = Path(folder) if folder is not None else None
    table = States(sizes, store_in(setting.states, place))
    carrier, why = choose(algorithm, federation, setting, table)
    log.info("engine: %s; %s", carrier.describe()["engine"], why)
    identity = {
        "rounds": rounds,
        "seed": seed,
        "federation": federation.fingerprint,
        "algorithm": describe(algorithm),
        "cohort": describe(cohort),
        "groups": None if groups is None else [edge.tolist() for edge in edges],
    }

    def handle(round: int, ids: Tensor, ledger: Ledger) -> Handle:
        return Handle(carrier, ids, sizes, round, rounds, ledger, answers, edges)

    everyone = torch.arange(len(sizes))
    run = Run(algorithm, {}, [], Facts.of(federation), rounds=rounds, seed=seed)
    try:
        done = _resume(run, carrier, place, identity) if place and resume else 0
        opening = Ledger()  # what a method asks of its clients at the start belongs to the first round
        if done == 0:
            ledger = Ledger()
            outside = Handle(carrier, everyone, sizes, 0, rounds, ledger, edges=edges)
            run.server = algorithm.init_server(outside, keys.fold(root, "server"))
            opening = Ledger(ledger.uplink, ledger.downlink)
            outside.apply(
                algorithm.enrol, {"server": run.server, "index": PerClient(everyone)}, keys.fold(root, "enrol")
            )
            if ledger.dropped:
                names = ", ".join(federation.clients[i].name for i in ledger.dropped)
                raise DivergenceError(f"Nothing can start: the first state holds NaN or infinities at {names}.")
        metrics_file = _metrics_file(place, run.history) if place else None
        last = min(until or rounds, rounds)
        with _interruption() as interrupted, RoundBar(type(algorithm).__name__, rounds, done) as bar:
            for round in range(done, last):
                started, ledger = time.perf_counter(), Ledger() if round else opening
                ids = cohort.draw(sizes, keys.fold(root, "cohort", round))
                clients = handle(round, ids, ledger)
                run.server, info = _round(
                    algorithm, run.server, clients, keys.fold(root, "round", round), run, place, identity
                )
                record = _record(round, info, ledger, ids, federation, time.perf_counter() - started)
                ending = round + 1 == last or interrupted.is_set()
                if ending or (evaluate_every and (round + 1) % evaluate_every == 0):
                    found = evaluate(
                        algorithm,
                        run.server,
                        handle(round, everyone, Ledger()),
                        federation,
                        keys.fold(root, "eval", round),
                        setting,
                    )
                    record["metrics"], run.table = found.metrics, found.clients
                run.history.append(record)
                moment = Moment(round + 1, record, run.server, handle(round, everyone, Ledger()), algorithm, federation)
                for callback in callbacks:
                    callback(moment)
                if metrics_file:
                    with metrics_file.open("a") as file:
                        file.write(json.dumps(record) + "\n")
                bar.update(record)
                stopping = interrupted.is_set()
                if place and (ending or stopping or (round + 1) % checkpoint_every == 0):
                    _save(run, carrier, place, identity)
                if stopping and round + 1 < last:
                    where = f"; the checkpoint is in {place}, run it again to go on" if place else ""
                    raise KeyboardInterrupt(f"Stopped after round {round + 1} of {rounds}{where}.")
        run.clients = carrier.states
        return run
    finally:
        carrier.close()


def _round(
    algorithm: Algorithm,
    server: Tree,
    clients: Handle,
    key: Tensor,
    run: Run,
    place: Path | None,
    identity: dict[str, Any],
) -> tuple[Tree, dict[str, Any]]:
    reason = ""
    try:
        with torch.no_grad():
            new, info = algorithm.round(server, clients, key)
        if bool(finite(new)):
            return new, info
        reason = f"The server's state holds NaN or infinities after round {clients.round}."
    except NoReplyError as error:
        if "NaN" not in str(error):
            log.warning("%s The server keeps its state.", error)
            return server, {}
        reason = str(error)
    except DivergenceError as error:
        reason = f"After round {clients.round}: {error}"
    if clients.ledger.dropped:
        reason += f" Left out: {_names(clients.ledger.dropped, run.facts.names)}."
    kept = ""
    if place is not None:
        _save(run, clients.carrier, place, identity)
        kept = f" The state before it is in {place}."
    raise DivergenceError(f"{reason}{kept} A lower learning rate or gradient clipping (SGD's clip) usually helps.")


def _record(
    round: int, info: dict[str, Any], ledger: Ledger, ids: Tensor, federation: Federation, seconds: float
) -> dict[str, Any]:
    record: dict[str, Any] = {"round": round + 1}
    record |= {name: value.tolist() if isinstance(value, Tensor) else value for name, value in info.items()}
    record |= {
        "cohort": len(ids),
        "uplink": ledger.uplink,
        "downlink": ledger.downlink,
        "seconds": float(f"{seconds:.4g}"),
    }
    if ledger.dropped:
        names = [client.name for client in federation.clients]
        record["dropped"] = {names[i]: why for i, why in ledger.dropped.items()}
        log.warning("round %d: left out: %s", round + 1, _names(ledger.dropped, names))
    return record


def _names(dropped: dict[int, str], names: Sequence[str]) -> str:
    return "; ".join(f"{names[i]} ({why})" for i, why in dropped.items())


def _save(run: Run, carrier: Carrier, place: Path, identity: dict[str, Any]) -> None:
    run.clients = carrier.states
    run.save(place, identity | {"engine": carrier.describe()})


def _resume(run: Run, carrier: Carrier, place: Path, identity: dict[str, Any]) -> int:
    checkpoint = Checkpoint.load(place)
    if checkpoint is None:
        return 0
    there = checkpoint.facts.get("identity", {})
    different = [name for name, value in identity.items() if there.get(name) != json.loads(json.dumps(value))]
    if different:
        raise ValueError(
            f"{place} holds a run with another {' and '.join(different)}. Choose another folder, or start anew there "
            "with resume=False."
        )
    carrier.states.load(checkpoint.clients)
    run.server = checkpoint.server
    run.history, run.table = checkpoint.facts["history"], checkpoint.facts["table"]
    return checkpoint.round


def _metrics_file(place: Path, history: list[dict[str, Any]]) -> Path:
    """The metrics as far as the checkpoint goes; rounds after it will be made, and written, again."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in history))
    return path


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        log.warning("Stopping after this round; Ctrl-C again stops at once and goes back to the last checkpoint.")
        asked.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def describe(value: object) -> Any:
    """A configuration in JSON's types: dataclasses by their fields, modules by structure and number of parameters."""
    if isinstance(value, nn.Module):
        return f"{' '.join(repr(value).split())}, {sum(p.numel() for p in value.parameters())} parameters"
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {f.name: describe(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(name): describe(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):  # parameters to start from, say: by their values, in one line
        digest = hashlib.sha256(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}, SHA-256 {digest[:16]}"
    return getattr(value, "__qualname__", type(value).__name__)


def _check(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"fit's {name} must be a whole number of at least 1; given {value!r}.")


def _check_parts(algorithm: object, federation: object, cohort: object, seed: object) -> None:
    for what, value, kind in (("an Algorithm", algorithm, Algorithm), ("a Federation", federation, Federation)):
        if not isinstance(value, kind):
            raise TypeError(f"fit takes an algorithm and a federation; given {kind_of(value)} instead of {what}.")
    if isinstance(task := getattr(algorithm, "task", None), nn.Module):
        raise TypeError(
            f"{type(algorithm).__name__}'s task is a bare {type(task).__name__}. Make a task of it: "
            "classification(module, federation), regression(module, federation), or "
            "Whole(Network(module, federation.inputs), CrossEntropy())."
        )
    assert isinstance(algorithm, Algorithm)
    assert isinstance(federation, Federation)
    _check_fields(algorithm)
    _check_fit(algorithm, federation)
    if cohort is not None and not hasattr(cohort, "draw"):
        raise TypeError(f"fit's cohort is Full() or Sample(fraction=…) or Sample(count=…); given {cohort!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"fit's seed must be a whole number of 64 bits; given {seed!r}.")


def _check_fields(algorithm: Algorithm) -> None:
    """Solvers and tasks of the algorithm, and of those within it: annotations say what they are."""
    if not is_dataclass(algorithm):
        return
    for field in fields(algorithm):
        value, owner = getattr(algorithm, field.name), type(algorithm).__name__
        if isinstance(value, Algorithm):
            _check_fields(value)
        elif field.type in ("SGD", SGD):
            solver(owner, **{field.name: value})
        elif field.type in ("Task", Task) and not (hasattr(value, "init") and hasattr(value, "loss")):
            raise TypeError(
                f"{owner}'s {field.name} is what it learns, by classification(encoder, federation), regression(…) or "
                f"Whole(…); given {kind_of(value)}."
            )


def _check_fit(algorithm: Algorithm, federation: Federation) -> None:
    """Whether networks were made for examples like the federation's, and tasks for its targets."""
    shape = tuple(federation.inputs.shape)
    for network in held(algorithm, Network):
        if network.inputs is not None and tuple(network.inputs.shape) != shape:
            raise ValueError(
                f"{type(algorithm).__name__}'s {type(network.module).__name__} was made for examples of shape "
                f"{tuple(network.inputs.shape)}; those of {federation.name!r} have {shape}. Make its task, and its "
                "router, with the federation that it runs on."
            )
    for task in held(algorithm, Supervised):
        if task.outputs != federation.outputs:
            kind = "targets" if federation.classes is None else "classes"
            raise ValueError(
                f"{type(algorithm).__name__}'s task has {task.outputs} outputs; {federation.name!r} has "
                f"{federation.outputs} {kind}. Make the task with the federation that it runs on."
            )
