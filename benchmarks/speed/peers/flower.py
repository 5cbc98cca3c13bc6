"""FedAvg in Flower's simulation: one actor a core with one thread each, and data that stay in the actors."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from typing import Any

import networks
import shards
import torch
import torch.nn.functional as F  # noqa: N812
from pace import FOREVER, Pace


@cache
def held(text: str) -> tuple[networks.Whole, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return an actor's model and all clients' data, made once."""
    torch.set_num_threads(1)
    work = json.loads(text)
    x, y = (torch.from_numpy(values) for values in shards.read(work))
    return networks.Whole(work), [(x[place], y[place]) for place in shards.places(work, len(x))]


def main(work: dict[str, Any]) -> None:
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # for the actors
    pace = Pace()
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    text = json.dumps(work)
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        from flower import held as here  # the actor's own, which keeps it

        model, clients = here(text)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = clients[int(context.node_config["partition-id"])]
        optimiser = torch.optim.SGD(model.parameters(), lr=work["lr"], momentum=work["momentum"])
        for _ in range(work["epochs"]):
            for index in torch.randperm(len(y)).split(work["batch"]):
                optimiser.zero_grad()
                F.cross_entropy(model(x[index]), y[index]).backward()
                optimiser.step()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    start = networks.started(work)

    def moved(arrays: Any) -> float:
        model = networks.Whole(work)
        model.load_state_dict(arrays.to_torch_state_dict())
        return networks.distance(model, start)

    def mark(round: int, arrays: Any) -> None:
        if round:  # 0 is before the first
            pace.mark(lambda: moved(arrays))

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=work["cohort"] / work["clients"],
            fraction_evaluate=0.0,
            min_train_nodes=work["cohort"],
            min_available_nodes=work["clients"],
        )
        strategy.start(grid=grid, initial_arrays=ArrayRecord(start.state_dict()), num_rounds=FOREVER, evaluate_fn=mark)

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work["clients"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "include_dashboard": False, "logging_level": "error"},
        },
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["work"])
