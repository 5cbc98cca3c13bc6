"""Digests of every conformance row's end: ``python tests/conformance/digests.py > before``, and again after a change.

A change that only moves or renames code leaves every line as it was. Bits depend on the processor and on torch, so that
two lists are compared on one machine; none is kept in the repository.
"""

import hashlib
import json

import torch
from table import ROWS

from archipel import Federation, Sample, fit
from archipel.core.trees import flatten
from archipel.engines.setting import Setting
from random_tables import random_tables


def digest(run):
    found = hashlib.sha256()
    for name, value in flatten(
        {"server": run.server, "clients": {str(i): state for i, state in enumerate(run.clients)}}
    ).items():
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in run.history]
    found.update(json.dumps(history, sort_keys=True).encode())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    torch.set_num_threads(1)
    uneven = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
    for name, row in ROWS.items():
        for engine in ("loop", "batched"):
            for cohort in (None, Sample(count=2)):
                run = fit(
                    row.make(uneven), uneven, groups=row.groups, rounds=3, setting=Setting(engine=engine), cohort=cohort
                )
                print(name, engine, "all" if cohort is None else "2 of 4", digest(run), flush=True)
