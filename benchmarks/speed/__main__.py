"""Seconds a round beside bare loops and other simulators, measured in turns on an idle machine.

Run it by ``make speed``, or ``make speed ARGS="--fast"``. The full plan takes half an hour on two cores.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from speed import plan as speed_plan
from speed.measure import interpreters
from speed.report import bench


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    made = argparse.ArgumentParser("python -m speed", description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--fast", action="store_true", help="fewer workloads, contenders and turns: about five minutes")
    made.add_argument("--only", metavar="NAMES", help="some workloads, as in W1,W2,growth; default: all")
    made.add_argument(
        "--peers",
        type=Path,
        default=os.environ.get("ARCHIPEL_PEERS"),
        help="folder of virtual environments named pfl, fedjax, flwr, fluke, blazefl; default: $ARCHIPEL_PEERS",
    )
    made.add_argument(
        "--peer-python", action="append", default=[], metavar="NAME=PATH", help="interpreter of one peer; repeatable"
    )
    made.add_argument("--out", type=Path, default=Path("results/speed"), help="folder of the results")
    made.add_argument("--data-dir", type=Path, help="folder of Fashion-MNIST's files; default: $ARCHIPEL_DATA")
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the words ask for; a wrong word ends the command with a sentence and exit code 2."""
    arguments = parser()
    given = arguments.parse_args(words)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("archipel").setLevel(logging.INFO)
    pairs = [pair.partition("=") for pair in given.peer_python]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        arguments.error(f"--peer-python takes NAME=PATH, as in pfl=/path/to/python; given {wrong[0]!r}.")
    try:
        found = interpreters(given.peers, {name: path for name, _, path in pairs})
        plan = (speed_plan.fast if given.fast else speed_plan.full)(given.only and given.only.split(","))
    except ValueError as error:
        arguments.error(str(error))
    asked = " ".join(sys.argv[1:] if words is None else words)
    command = "make speed" + (f' ARGS="{asked}"' if asked else "")
    bench(given.out, plan, command, found, data_dir=given.data_dir, console=Console())


if __name__ == "__main__":
    main()
