"""What every rank of a distributed run does in ``test_ranks.py``: all conformance rows, whose digests the first prints.

torchrun --nproc-per-node 2 tests/engines/rank_rows.py loop both
"""

import json
import os
import sys

import torch
from digests import digest
from table import ROWS

from archipel import Federation, Sample, fit
from archipel.engines.setting import Setting
from random_tables import random_tables

COHORTS = (None, Sample(count=2))


def digests(setting, cohorts=COHORTS):
    """The end of every row, with everybody and with half of the clients in each round."""
    uneven = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
    for name, row in ROWS.items():
        for cohort in cohorts:
            run = fit(row.make(uneven), uneven, groups=row.groups, rounds=3, setting=setting, cohort=cohort)
            yield f"{name}, {'all' if cohort is None else '2 of 4'}", digest(run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    cohorts = COHORTS if sys.argv[2] == "both" else COHORTS[:1]
    found = dict(digests(Setting(engine="distributed", within=sys.argv[1], workers=1), cohorts))
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
