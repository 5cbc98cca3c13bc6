"""A contender's process, ``python -m speed.serve SPEC``, which works when its input tells it to."""

from __future__ import annotations

import json
import sys

import torch

from speed.peers.pace import Pace
from speed.work import Work


def main(text: str) -> None:
    """Run what a JSON text describes: ``kind`` (``"archipel"`` or a floor), ``work`` and ``options``."""
    pace, spec = Pace(), json.loads(text)
    torch.set_num_threads(1)
    work = Work.of(spec["work"])
    if spec["kind"] == "archipel":
        from speed.works_of_archipel import run

        run(work, pace.mark, **spec["options"])
    else:
        from speed.floors import run as run_floor

        run_floor(spec["kind"], work, pace.mark, **spec["options"])


if __name__ == "__main__":
    main(sys.argv[1])
