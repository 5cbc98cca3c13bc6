"""A contender's process: ``python -m archipel.bench.speed_serve SPEC``, told when to work through its input."""

from __future__ import annotations

import json
import sys

import torch

from archipel.bench.speed_peers.pace import Pace
from archipel.bench.speed_work import Work


def main(text: str) -> None:
    """Runs what the text describes, in JSON: ``kind`` (``"archipel"`` or a floor), ``work`` and ``options``."""
    pace, spec = Pace(), json.loads(text)
    torch.set_num_threads(1)
    work = Work.of(spec["work"])
    if spec["kind"] == "archipel":
        from archipel.bench.speed_archipel import run

        run(work, pace.mark, **spec["options"])
    else:
        from archipel.bench.speed_floors import run as run_floor

        run_floor(spec["kind"], work, pace.mark, **spec["options"])


if __name__ == "__main__":
    main(sys.argv[1])
