"""The command ``archipel em``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from archipel.cli.console import echo, out, quiet, tell
from archipel.cli.options import AsJson

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A folder with a file for each client: .npz (x, and y), .npy, .csv, .tsv or .parquet."
    ),
]


def em(
    folder: Folder,
    family: Annotated[
        str,
        typer.Option(help="gaussian, bernoulli, latent-class, poisson, regression or factor."),
    ] = "gaussian",
    components: Annotated[int, typer.Option("--components", "-K", min=1, help="Number of components or factors.")] = 2,
    select: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Choose the number of components by BIC, as in 1:10.")
    ] = None,
    covariance: Annotated[str, typer.Option(help="Covariances of gaussian: full, tied, diag or spherical.")] = "full",
    noise: Annotated[str, typer.Option(help="Noise of factor: isotropic or diagonal.")] = "isotropic",
    personal: Annotated[bool, typer.Option("--personal", help="Give each client mixing weights of its own.")] = False,
    target: Annotated[
        str | None, typer.Option(help="The column of a .csv that is regressed on the others; default: the last.")
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:NUMBER]", help="Compress what clients send: dithering:4, qsgd:4, natural, rand-k:20."
        ),
    ] = None,
    participation: Annotated[float, typer.Option(help="The probability that a client takes part in a round.")] = 1.0,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples drawn for a round; default: all.")] = None,
    starts: Annotated[int | None, typer.Option(min=1, help="Number of starts; default: 1, for regressions 5.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Maximum of rounds; default: 100, for factors 1,000.")
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(help="Stop when the mean log-likelihood changes by less; default: 1e-3, for factors 1e-5."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of everything random.")] = 0,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="Write model.safetensors and model.json into it.", show_default=False),
    ] = None,
    write: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT,…",
            help="Also write for every client: labels, responsibilities, imputed or factors.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a mixture or a factor model to clients' files by federated EM."""
    from archipel.em.client_files import read_files
    from archipel.em.model_selection import build_estimator, component_counts, select_components
    from archipel.em.output import check_wanted, fitted_table, record_of, write_model

    quiet()
    given: dict[str, float | None] = {"n_init": starts, "max_iter": rounds, "tol": tol}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings |= {"participation": participation, "batch_size": batch, "random_state": seed}
    model = build_estimator(family, settings, covariance=covariance, noise=noise, personal=personal, compress=compress)
    wanted = _wanted(write, out_dir)
    check_wanted(model, wanted)
    tables, targets, columns = read_files(folder, regresses=model.regresses, target=target)
    for name, table in tables.items():
        if family != "factor" and any(value != value for row in table.tolist() for value in row):
            raise ValueError(
                f"{name} contains NaN or empty cells, and --family {family} has no missing values. Fill them, leave "
                "those rows out, or take --family factor, which estimates what is missing."
            )
    counts = component_counts(select) if select else [components]

    found, tried = select_components(model, counts, tables, targets, tell)
    if out_dir is not None:
        write_model(out_dir, found, tables, targets, columns, tried, wanted)
    if as_json:
        echo(json.dumps(record_of(found, tables, targets, columns, tried)))
        return
    out.print(*fitted_table(found, tables, targets, columns, tried))
    if out_dir is not None:
        tell(f"Written to {out_dir}.")


def _wanted(write: str | None, out_dir: Path | None) -> tuple[str, ...]:
    wanted = tuple(name.strip() for name in (write or "").split(",") if name.strip())
    if wanted and out_dir is None:
        raise ValueError(f"--write {write} needs --out FOLDER, where the files go.")
    return wanted
