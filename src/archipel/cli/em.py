"""The command ``archipel em``."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

out, err = Console(), Console(stderr=True)

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A folder with one file a client: .npz (x, and y), .npy or .csv.")
]


def em(
    folder: Folder,
    family: Annotated[
        str,
        typer.Option(help="gaussian, bernoulli, latent-class, poisson, regression or factor."),
    ] = "gaussian",
    components: Annotated[int, typer.Option("--components", "-K", min=1, help="Components, or factors.")] = 2,
    select: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Choose the number of components by BIC, as 1:10.")
    ] = None,
    covariance: Annotated[str, typer.Option(help="full, tied, diag or spherical (gaussian).")] = "full",
    noise: Annotated[str, typer.Option(help="isotropic or diagonal (factor).")] = "isotropic",
    personal: Annotated[bool, typer.Option("--personal", help="Mixing weights of each client's own.")] = False,
    target: Annotated[
        str | None, typer.Option(help="The column of a .csv that is regressed on the others; default: the last one.")
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:NUMBER]", help="Compress what clients send: dithering:4, qsgd:4, natural, rand-k:20."
        ),
    ] = None,
    participation: Annotated[float, typer.Option(help="Probability that a client takes part in a round.")] = 1.0,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples drawn a round; default: all.")] = None,
    starts: Annotated[int | None, typer.Option(min=1, help="Starts; default: 1, for regressions 5.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds at most; default: 100, for factors 1,000.")] = None,
    tol: Annotated[float | None, typer.Option(help="Likelihood's change that ends a run; default: 1e-3, 1e-5.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of starts and of all that is random.")] = 0,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Write model.safetensors and model.json there.", show_default=False)
    ] = None,
    write: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT,…",
            help="For every client, in --out: labels, responsibilities, imputed or factors.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs instead of tables.")] = False,
) -> None:
    """Fit a mixture or a factor model to clients' files by federated EM."""
    from archipel.em.client_files import read_files
    from archipel.em.model_selection import build_estimator, component_counts, select_components
    from archipel.em.output import check_wanted, fitted_table, record_of, write_model

    logging.getLogger("archipel").setLevel(logging.WARNING)  # which engine runs is no news here
    given: dict[str, float | None] = {"n_init": starts, "max_iter": rounds, "tol": tol}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings |= {"participation": participation, "batch_size": batch, "random_state": seed}
    model = build_estimator(family, settings, covariance=covariance, noise=noise, personal=personal, compress=compress)
    wanted = _wanted(write, out_dir)
    check_wanted(model, wanted)
    tables, targets, columns = read_files(folder, regresses=model.regresses, target=target)
    counts = component_counts(select) if select else [components]

    def tell(line: str) -> None:
        err.print(line, markup=False, highlight=False, soft_wrap=True)

    found, tried = select_components(model, counts, tables, targets, tell)
    if out_dir is not None:
        write_model(out_dir, found, tables, targets, columns, tried, wanted)
    if as_json:
        typer.echo(json.dumps(record_of(found, tables, targets, columns, tried)))
        return
    out.print(*fitted_table(found, tables, targets, columns, tried))
    if out_dir is not None:
        tell(f"Written to {out_dir}.")


def _wanted(write: str | None, out_dir: Path | None) -> tuple[str, ...]:
    wanted = tuple(name.strip() for name in (write or "").split(",") if name.strip())
    if wanted and out_dir is None:
        raise ValueError(f"--write {write} needs --out FOLDER, where the files go.")
    return wanted
