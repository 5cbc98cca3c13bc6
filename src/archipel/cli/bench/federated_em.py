"""The benchmark of federated EM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.bench.options import Workers, command_line
from archipel.cli.console import out
from archipel.cli.options import Fresh


def em(
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds of the first table and figure.")] = 3,
    out_dir: Annotated[Path, typer.Option("--out", help="The folder of the results.")] = Path("results/em"),
    workers: Workers = None,
    fresh: Fresh = False,
) -> None:
    """Compare FedEM and VR-FedEM: ‖h‖² against rounds, expectations and bits, and regimes of compression. Minutes."""
    from archipel.papers.federated_em.report import bench

    bench(out_dir, seeds, command_line(), workers=workers, fresh=fresh, console=out)
