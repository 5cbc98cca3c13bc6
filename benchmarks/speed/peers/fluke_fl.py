"""FedAvg in fluke: one process, one client after another, its fast loader, no evaluation."""

from __future__ import annotations

import json
import sys
from typing import Any

import networks
import shards
import torch
from pace import FOREVER, Pace


def main(work: dict[str, Any]) -> None:
    pace = Pace()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import FastDataLoader
    from fluke.utils import FederationObserver

    torch.set_num_threads(1)
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    x, y = (torch.from_numpy(values) for values in shards.read(work))

    class Splitter:
        """Return the common division of the data, for which fluke asks."""

        def assign(self, n_clients: int, batch_size: int) -> Any:
            loaders = [
                FastDataLoader(x[place], y[place], num_labels=work["classes"], batch_size=batch_size, shuffle=True)
                for place in shards.places(work, len(x))
            ]
            return (loaders, [None] * n_clients), None

    start = networks.started(work)
    model = networks.started(work)
    hyper_params = DDict(
        client=DDict(
            batch_size=work["batch"],
            local_epochs=work["epochs"],
            loss="CrossEntropyLoss",
            optimizer=DDict(lr=work["lr"], momentum=work["momentum"]),
            scheduler=DDict(step_size=FOREVER, gamma=1.0),
        ),
        server=DDict(weighted=True),
        model=model,
    )
    algorithm = FedAVG(work["clients"], Splitter(), hyper_params)

    class Mark(FederationObserver):
        def end_round(self, round: int) -> None:
            pace.mark(lambda: networks.distance(algorithm.server.model, start))

    algorithm.set_callbacks(Mark())
    algorithm.run(FOREVER, work["cohort"] / work["clients"], finalize=False)


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["work"])
