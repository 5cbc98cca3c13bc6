"""FedAvg in BlazeFL: one client after another, or on its pool of threads."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import networks
import shards
import torch
from pace import FOREVER, Pace


def main(work: dict[str, Any], threads: int = 1) -> None:
    os.environ["TQDM_DISABLE"] = "1"
    pace = Pace()
    from blazefl.contrib import fedavg

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(values) for values in shards.read(work))
    places, start = shards.places(work, len(x)), networks.started(work)
    # BlazeFL takes views of parameters, which channels-last ones have not; inputs stay channels-last.
    start.to(memory_format=torch.contiguous_format)

    class Loader:
        """Yield shuffled minibatches of tensors, without a DataLoader, which would collate single examples."""

        def __init__(self, place: slice) -> None:
            self.x, self.y = x[place], y[place]

        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for index in torch.randperm(len(self.y)).split(work["batch"]):
                yield self.x[index], self.y[index]

    class Shards:
        def get_dataloader(self, cid: int, **_: Any) -> Loader:
            return Loader(places[cid])

    class Models:
        def select_model(self, name: str) -> torch.nn.Module:
            return copy.deepcopy(start)

    class Sequential(fedavg.FedAvgBaseClientTrainer):
        """Train with the work's momentum, which starts at 0 at each client."""

        def train(self, model_parameters: torch.Tensor, train_loader: Any, cid: int) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=work["momentum"])
            return super().train(model_parameters, train_loader, cid)

    class OnThreads(fedavg.FedAvgThreadPoolClientTrainer):
        """Train with momentum, which its own ``train`` does not take."""

        def train(
            self, model: Any, model_parameters: torch.Tensor, train_loader: Any, epochs: int, cid: int, **rest: Any
        ) -> Any:
            fedavg.deserialize_model(model, model_parameters)
            optimiser = torch.optim.SGD(model.parameters(), lr=self.lr, momentum=work["momentum"])
            size = 0
            for _ in range(epochs):
                for data, target in train_loader:
                    loss = torch.nn.functional.cross_entropy(model(data), target)
                    size += len(target)
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
            return fedavg.FedAvgUplinkPackage(cid, fedavg.serialize_model(model), size)

    common: dict[str, Any] = {"model_selector": Models(), "model_name": "", "dataset": Shards(), "device": "cpu"}
    common |= {"num_clients": work["clients"], "batch_size": work["batch"], "seed": 0}
    server = fedavg.FedAvgBaseServerHandler(
        **common, global_round=FOREVER, sample_ratio=work["cohort"] / work["clients"]
    )
    if threads > 1:
        trainer = OnThreads(**common, epochs=work["epochs"], lr=work["lr"], num_parallels=threads)
    else:
        trainer = Sequential(**common, epochs=work["epochs"], lr=work["lr"])
    while not server.if_stop():
        sampled, broadcast = server.sample_clients(), server.downlink_package()
        trainer.local_process(broadcast, sampled)
        for package in trainer.uplink_package():
            server.load(package)
        pace.mark(lambda: networks.distance(server.model, start))


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    main(spec["work"], **spec["options"])
