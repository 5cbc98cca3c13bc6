"""FedAvg in pfl-research: its simulated backend, one process, or under ``torchrun`` one process a core."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import networks
import numpy as np
import shards
import torch
import torch.nn.functional as F  # noqa: N812
from pace import FOREVER, Pace


def main(work: dict[str, Any]) -> None:
    # Of several processes the first one talks; the others wait for it where sums are shared.
    pace = Pace() if os.environ.get("RANK", "0") == "0" else None
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 (what pfl draws cohorts by, the same in all processes)

    class Network(networks.Whole):
        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.train()
            return F.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            return {}

    x, y = (torch.from_numpy(values) for values in shards.read(work))
    clients = [Dataset((x[p], y[p]), user_id=str(i)) for i, p in enumerate(shards.places(work, len(x)))]
    sampler = get_user_sampler("minimize_reuse", list(range(len(clients))))
    training = FederatedDataset(lambda client: clients[client], sampler)
    start, network = networks.started(work), Network(work)
    network.load_state_dict(start.state_dict())
    model = PyTorchModel(
        network,
        lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=work["momentum"]),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )

    class Mark(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if pace is not None:
                pace.mark(lambda: networks.distance(network, start))
            return False, Metrics()

    backend = SimulatedBackend(training, training, postprocessors=[WeightByDatapoints()])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(FOREVER, FOREVER + 1, work["cohort"], None),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=work["batch"], local_num_epochs=work["epochs"], local_learning_rate=work["lr"]
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Mark()],
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["work"])
