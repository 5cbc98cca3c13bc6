"""The tables and files that ``archipel em`` makes of a fitted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from rich.table import Table

from archipel.em.client_files import Matrix
from archipel.em.factor_estimator import FederatedFactorModel

SHOWN = 8
"""The most columns of parameters that a table shows; files have all."""
ROWS = 30
"""The most clients that a table shows."""

Targets = dict[str, Matrix] | None


def record_of(
    model: Any, tables: dict[str, Matrix], targets: Targets, columns: tuple[str, ...], tried: Any
) -> dict[str, Any]:
    """Return the record of a fit in JSON's types."""
    n = sum(map(len, tables.values()))
    return {
        "model": type(model).__name__,
        "components": int(model.n_components),
        "clients": {name: _of_client(model, name, table, targets) for name, table in tables.items()},
        "examples": n,
        "columns": list(columns),
        "parameters": {name: np.asarray(getattr(model, f"{name}_")).tolist() for name in model.names},
        "log_likelihood": model.lower_bound_,
        "bic": model.bic(tables, targets),
        "aic": model.aic(tables, targets),
        "free_parameters": model.n_parameters_,
        "rounds": model.n_iter_,
        "converged": model.converged_,
        "projected": model.n_projected_,
        "uplink": sum(entry["uplink"] for entry in tried),
        "downlink": sum(entry["downlink"] for entry in tried),
        "tried": tried,
    }


def fitted_table(
    model: Any, tables: dict[str, Matrix], targets: Targets, columns: tuple[str, ...], tried: Any
) -> list[Table]:
    """Make tables of the fit, its parameters, its clients, and the numbers of components that were tried."""
    record = record_of(model, tables, targets, columns, tried)
    head = _table("", "")
    facts = {
        "model": f"{record['model']}, {record['components']} components",
        "clients": f"{len(tables)} with {record['examples']:,} examples of {len(columns)} columns",
        "log-likelihood": f"{record['log_likelihood']:.4f} per example",
        "BIC": f"{record['bic']:,.1f} ({record['free_parameters']} free parameters)",
        "AIC": f"{record['aic']:,.1f}",
        "rounds": f"{record['rounds']}{'' if record['converged'] else ', not converged'}",
        "bytes": f"{record['uplink']:,} from clients, {record['downlink']:,} to them",
        "steps outside": f"{record['projected']} shortened to stay in the M-step's domain",
    }
    for name, value in facts.items():
        head.add_row(name, value)
    found = [head, _factors(model, columns) if isinstance(model, FederatedFactorModel) else _components(model, columns)]
    if hasattr(model, "client_weights_"):
        found.append(_weights(model))
    if len(tried) > 1:
        trials = _table("components", "log-likelihood", "BIC", "rounds")
        for entry in tried:
            mark = " *" if entry["components"] == record["components"] else ""
            row = f"{entry['components']}{mark}", f"{entry['log_likelihood']:.4f}", f"{entry['bic']:,.1f}"
            trials.add_row(*row, str(entry["rounds"]))
        found.append(trials)
    return found


def check_wanted(model: Any, wanted: tuple[str, ...]) -> None:
    """Raise ValueError for results that such a model doesn't have."""
    has = ("imputed", "factors") if isinstance(model, FederatedFactorModel) else ("labels", "responsibilities")
    if unknown := [name for name in wanted if name not in has]:
        raise ValueError(f"--write {unknown[0]}: a {type(model).__name__} has {' and '.join(has)} to write.")


def write_model(
    folder: Path,
    model: Any,
    tables: dict[str, Matrix],
    targets: Targets,
    columns: tuple[str, ...],
    tried: Any,
    wanted: tuple[str, ...],
) -> None:
    """Write ``model.safetensors``, ``model.json``, and ``WANTED/CLIENT.csv`` for every wanted result and client."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {name: np.ascontiguousarray(getattr(model, f"{name}_"), np.float64) for name in model.names}
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save(values))
    record = record_of(model, tables, targets, columns, tried)
    (folder / "model.json").write_text(json.dumps(record, indent=1) + "\n")
    for what in wanted:
        (folder / what).mkdir(exist_ok=True)
        for name, table in tables.items():
            header, rows = _asked(model, what, name, table, targets, columns)
            form = "%d" if what == "labels" else "%.10g"
            np.savetxt(folder / what / f"{name}.csv", rows, form, ",", header=header, comments="")


def _asked(
    model: Any, what: str, name: str, table: Matrix, targets: Targets, columns: tuple[str, ...]
) -> tuple[str, NDArray[Any]]:
    if what == "imputed":
        return ",".join(columns), model.impute(table)
    if what == "factors":
        return ",".join(f"factor {k}" for k in range(model.n_components)), model.transform(table)
    rows = _responsibilities(model, name, table, targets)
    if what == "labels":
        return "component", rows.argmax(1)
    return ",".join(f"component {k}" for k in range(model.n_components)), rows


def _responsibilities(model: Any, name: str, table: Matrix, targets: Targets) -> NDArray[np.float64]:
    who = {"client": name} if hasattr(model, "client_weights_") else {}
    found: NDArray[np.float64] = (
        model.predict_proba(table, **who) if targets is None else model.responsibilities(table, targets[name], **who)
    )
    return found


def _of_client(model: Any, name: str, table: Matrix, targets: Targets) -> dict[str, Any]:
    own = hasattr(model, "client_weights_")
    y = None if targets is None else targets[name]
    score = model.score(table, y, client=name) if own else model.score(table, y)
    entry = {"examples": len(table), "log_likelihood": score}
    if own:
        entry["weights"] = model.client_weights_[model.client_names_.index(name)].tolist()
    return entry


def _components(model: Any, columns: tuple[str, ...]) -> Table:
    """Make a table of components: their weights, and the first columns of one parameter."""
    names = [name for name in model.names if name != "weights" and np.asarray(getattr(model, f"{name}_")).ndim == 2]
    per = names[0]  # means, probabilities, rates or coefs
    values = np.asarray(getattr(model, f"{per}_"))
    titles = columns if values.shape[1] == len(columns) else [f"{per}[{j}]" for j in range(values.shape[1])]
    table = _table("component", "weight", *(f"{per[:-1]} {title}" for title in titles[:SHOWN]))
    for k, weight in enumerate(model.weights_):
        table.add_row(str(k), f"{weight:.4f}", *(f"{value:.4g}" for value in values[k, :SHOWN]))
    return table


def _factors(model: Any, columns: tuple[str, ...]) -> Table:
    noise = np.broadcast_to(model.noise_variance_, len(columns))
    table = _table("column", "mean", "noise variance", *(f"loading {k}" for k in range(min(SHOWN, model.n_components))))
    for j, name in enumerate(columns):
        loadings = (f"{value:.4g}" for value in model.components_[:SHOWN, j])
        table.add_row(name, f"{model.mean_[j]:.4g}", f"{noise[j]:.4g}", *loadings)
    return table


def _weights(model: Any) -> Table:
    shown = min(SHOWN, model.client_weights_.shape[1])
    table = _table("client", *(f"weight {k}" for k in range(shown)))
    for name, weights in list(zip(model.client_names_, model.client_weights_, strict=True))[:ROWS]:
        table.add_row(name, *(f"{weight:.4f}" for weight in weights[:shown]))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or not any(columns) else "right", no_wrap=True)
    return table
