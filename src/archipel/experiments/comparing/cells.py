"""The cells of a comparison: a method tuned on one split, and trained and tested with what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from archipel.algorithm import DivergenceError
from archipel.core import keys
from archipel.data.federation import Federation
from archipel.experiments.building import federation_from
from archipel.experiments.comparing.entries import Settings, configured, space, tuned
from archipel.experiments.config import RunConfig, algorithm_from
from archipel.experiments.reading import validate
from archipel.fit import fit
from archipel.runs.metrics.assessment import Assessment
from archipel.runs.run import Run

STUDY = "study.log"


def for_choosing(federation: Federation) -> Federation:
    """Return the clients with their validation examples as test examples, for choosing settings."""
    clients = tuple(
        replace(client, test=client.validation or client.test, validation=None, truth={})
        for client in federation.clients
    )
    return replace(federation, clients=clients)


@lru_cache(maxsize=2)
def _federation(settings: str) -> Federation:
    return federation_from(validate(json.loads(settings), "a cell"))


def trained(config: RunConfig, *, choosing: bool) -> tuple[Run, Federation]:
    """Train a run in memory; on data that are built once a process.

    Args:
        config: of the run.
        choosing: test on validation examples instead of test examples.
    """
    same = config.model_dump(mode="json") | {"algorithm": {"name": "fedavg"}, "name": "data", "rounds": 1}
    federation = _federation(json.dumps(same, sort_keys=True))
    shown = for_choosing(federation) if choosing else federation
    algorithm = algorithm_from(config, federation)
    run = fit(algorithm, shown, rounds=config.rounds, cohort=config.cohort.build(), seed=config.seed,
              setting=replace(config.setting, workers=1))  # fmt: skip
    return run, shown


def score(sites: Assessment, method: str, metric: str) -> dict[str, float]:
    """Return a metric of each site, and of all together under ``""``; larger is better.

    Sites where the metric doesn't exist, as AUC without one of the classes, are left out.
    """
    sign = -1.0 if metric in ("brier", "mae", "rmse") else 1.0
    rows = [row for row in sites.rows if row.model == method]
    values = {"" if row.pooled else row.site: row.value(metric) for row in rows}
    return {site: sign * value for site, value in values.items() if value is not None}


def one_method(
    folder: Path, base: Settings, section: Settings, seed: int, tries: int, metric: str, first: dict[str, float]
) -> dict[str, Any]:
    """Tune a method on the validation examples of one split, train it with the best settings, and test it.

    The trials are in ``study.log`` of the folder (Optuna's journal). A trial's suggestion depends on its number and the
    trials before it alone, so that a search that was stopped goes on as if it had not been.

    Args:
        folder: of the cell.
        base: the base run.
        section: the method's, before tuning.
        seed: of the split and of everything random.
        tries: settings to try; 0: the section as it is.
        metric: that is tuned for, over all sites together.
        first: the settings of the first trial.
    """
    run_config = validate(base, "the base run")
    chosen: dict[str, float] = {}
    searched: list[float | None] = []
    if tries:
        chosen, searched = _search(folder, run_config, section, seed, tries, metric, first)
    try:
        run, federation = trained(configured(run_config, tuned(section, chosen), seed), choosing=False)
    except DivergenceError as error:
        return {"scores": {}, "chosen": chosen, "tried": searched, "why": str(error)}
    sites = run.evaluate(federation).sites
    if sites is None:
        raise ValueError(f"{section['name']} doesn't predict, or there are no test examples: nothing can be compared.")
    ways = {way: sum(record[way] for record in run.history) for way in ("uplink", "downlink")}
    sizes = {client.name: [len(client.train["y"]), len(client.test["y"])] for client in federation.clients}
    method = type(run.algorithm).__name__
    return {"method": method, "scores": score(sites, method, metric), "chosen": chosen, "tried": searched,
            "sizes": sizes, **ways}  # fmt: skip


def _search(
    folder: Path, base: RunConfig, section: Settings, seed: int, tries: int, metric: str, first: dict[str, float]
) -> tuple[dict[str, float], list[float | None]]:
    optuna = _optuna()
    folder.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / STUDY))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(storage=storage, study_name="tuning", direction="maximize", load_if_exists=True)
    states = optuna.trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):  # a stopped search was in the middle of it
        study.tell(trial.number, state=states.FAIL)
    ranges = space(section["name"])
    while (done := [t for t in study.get_trials() if t.state != states.FAIL]) is not None and len(done) < tries:
        number = len(done)
        study.sampler = optuna.samplers.TPESampler(seed=int(keys.fold(keys.key(seed), "tune", number)) % 2**32)
        if number == 0 and not study.get_trials(states=(states.WAITING,)):
            study.enqueue_trial(first)
        trial = study.ask()
        values = {name: trial.suggest_float(name, low, high, log=log) for name, (low, high, log) in ranges.items()}
        try:
            run, shown = trained(configured(base, tuned(section, values), seed), choosing=True)
            sites = run.evaluate(shown).sites
            assert sites is not None
            study.tell(trial, score(sites, type(run.algorithm).__name__, metric)[""])
        except DivergenceError:
            study.tell(trial, state=states.PRUNED)
    finished = [trial for trial in study.get_trials() if trial.state != states.FAIL]
    complete = [trial for trial in finished if trial.value is not None]
    best = max(complete, key=lambda trial: (trial.value, -trial.number), default=None)
    return ({} if best is None else dict(best.params)), [trial.value for trial in finished]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ValueError(
            "Tuning needs Optuna, which isn't installed: pip install 'archipel[tune]', or --tune 0 to compare methods "
            "with the settings as they are."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
