"""FedCR.

H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong: FedCR: personalized federated learning based on across-client common
representation with conditional mutual information regularization. ICML 2023. Equation numbers are those of
docs/methods/representation.md.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from archipel.algorithm import Clients, Info, Weights
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core import keys
from archipel.core.checks import NonNegative
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree
from archipel.learning.criteria import SquaredError
from archipel.learning.gaussians import divergence
from archipel.learning.networks import linear, linear_init
from archipel.learning.sgd import Batch, Loss, trained
from archipel.learning.tasks import Supervised

PIECE = 512
"""Examples a forward pass of the local product of experts."""
FLOOR = 1e-4
"""The least variance of a feature: an expert is never infinitely sure."""


@dataclass(frozen=True, eq=False)
class FedCR(SharedModel):
    """A shared stochastic encoder under local heads; features are aligned by class across clients.

    The encoder maps x to a normal p(z|x) = N(μ(x), Σ(x)), Σ diagonal: μ is the task's encoder, and the variance is
    softplus of a linear layer on it. Client k minimises by local SGD (eq. 23)

        E[−log softmax(head_k(z))_y] + β KL[N(μ^y, Σ^y) ‖ p(z|x)],  z = μ(x) + Σ(x)^½ ε, ε ~ N(0, I),

    whose second term pulls each example's features, by a gradient through the encoder, to its class's global posterior.
    That is a product of experts: client k's for class c is the geometric mean of its examples' normals (eq. 21), and
    the server multiplies those of the clients that took part with the prior N(0, I) (eq. 22):

        1/Σ_k^c = mean_j 1/Σ(x_j), μ_k^c/Σ_k^c = mean_j μ(x_j)/Σ(x_j) over the client's examples of class c,
        1/Σ^c = 1 + Σ_k 1/Σ_k^c,   μ^c = Σ^c Σ_k μ_k^c/Σ_k^c.

    A class that no client of a round has keeps its posterior; all start from N(0, I). The encoders are averaged, a head
    stays with its client. With β = 0 and a deterministic encoder it is FedPer. Prediction takes z = μ(x).

    The experts are computed by one pass of the trained local encoder over the client's data, where the authors collect
    them during the last epoch; a client sends their precisions and precision-weighted means, zeros for classes it
    doesn't have. These say the same as (μ_k^c, Σ_k^c) and can be summed.

    Args:
        task: a classifier: encoder, head and cross-entropy.
        local: the local solver.
        beta: β, 0 or above.
        encoder: ``"stochastic"``, or ``"deterministic"``: Σ(x) = 0, which needs β = 0, since the KL is infinite.
        weights: of the encoders' mean: ``"uniform"``, or ``"examples"``. The product knows no weights.
        batch_norm: what becomes of the statistics of the encoder's BatchNorm: ``"share"``, ``"local"`` or
            ``"recompute"``.

    Raises:
        ValueError: β below 0; a deterministic encoder with β above 0; a regression.

    >>> import torch
    >>> from archipel import SGD, FedCR, Federation, classification, fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> run = fit(FedCR(task, SGD(lr=0.5, epochs=2, batch=5), beta=1e-3), opposite, rounds=15)
    >>> run.metrics["average_accuracy"] > 0.8
    True
    """

    task: Supervised
    beta: NonNegative = 1e-3
    encoder: Literal["stochastic", "deterministic"] = "stochastic"
    _: KW_ONLY
    weights: Weights = "uniform"

    own_parts = ("head",)
    predict_global = None  # type: ignore[assignment]  # no model is everybody's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder == "deterministic" and self.beta > 0:
            raise ValueError(
                f"A deterministic encoder is infinitely far from any normal: FedCR needs beta=0 with it; given "
                f"beta={self.beta}."
            )
        if isinstance(self.task.criterion, SquaredError):
            raise ValueError("FedCR aligns features class by class: it needs a classification, not a regression.")

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        server, d = super().init_server(clients, key), self.task.features
        if self.encoder == "deterministic":
            return server
        nobody = torch.zeros(self.task.outputs, d)
        shared = {"spread": linear_init(keys.fold(key, "spread"), d, d)} | server["model"]
        return server | {"model": shared, "mean": nobody, "variance": torch.ones_like(nobody)}

    def broadcast(self, server: Tree, clients: Clients) -> Tree:
        return super().broadcast(server, clients) | posterior(server)

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        mean, share = clients.mean_and_share(self.train, self.broadcast(server, clients), key, self.weights)
        model = self.refreshed(server["model"] | mean["model"], clients, key)
        server = server | {"model": model}
        if self.encoder == "stochastic":
            # From the mean to the sum: the weights of the mean, by which each client has divided, add up to this.
            everybody = clients.population if self.weights == "uniform" else int(clients.sizes.sum())
            precision, shift = (share * everybody * mean["experts"][name] for name in ("precision", "shift"))
            mu, variance = product(precision, shift)
            known = precision[:, :1] > 0
            server |= {
                "mean": torch.where(known, mu, server["mean"]),
                "variance": torch.where(known, variance, server["variance"]),
            }
        return server, {"loss": mean["loss"]}

    # The clients

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run local SGD on encoder and head, and compute the client's experts under the encoder it ends with."""
        model = self.complete(message["model"], client)
        # What draws noise threads its key through the steps as buffers are.
        start = model | {"buffers": {"network": model.get("buffers", {}), "key": keys.fold(key, "noise")}}
        loss = self.objective(message) if self.encoder == "stochastic" else self._deterministic
        end = self.local.minimise(loss, start, data.train, key, message["lr"], client.get("velocity"))
        after = end.params["buffers"]["network"]
        end = replace(end, params=trained(end.params) | ({"buffers": after} if after else {}))
        reply = self.reply(end)
        if self.encoder == "stochastic":
            weight = data.train.count if self.weights == "examples" else torch.ones_like(data.train.count)
            reply["experts"] = {name: t / weight for name, t in self.experts(end.params, data.train).items()}
        return self.keep(client, end), reply

    def objective(self, message: Tree) -> Loss:
        """Eq. (23) for the global posterior in the message."""

        def loss(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            key = params["buffers"]["key"]
            mean, variance, after = self.encode(params | {"buffers": params["buffers"]["network"]}, batch["x"], True)
            z = mean + variance.sqrt() * keys.normal_rows(key, *mean.shape, dtype=mean.dtype)
            fit = self.task.criterion.loss(linear(params["head"], z), batch["y"])
            y = batch["y"]
            gap = divergence(message["mean"][y], message["variance"][y], mean, variance)
            return fit + self.beta * gap, {"network": after, "key": keys.fold(key, "next")}

        return loss

    def experts(self, model: Tree, examples: Examples) -> Tree:
        """Return the classes' local products of experts (eq. 21), ``(K, d)``: precision, and mean · precision."""
        total = torch.zeros(2, self.task.outputs, self.task.features)
        count = torch.zeros(self.task.outputs)
        for batch, real in zip(examples.pieces(PIECE), examples.mask.split(PIECE), strict=True):
            mean, variance, _ = self.encode(model, batch["x"], False)
            member = F.one_hot(batch["y"], self.task.outputs).to(mean.dtype) * real[:, None]
            total = total + torch.stack([member.mT @ (1 / variance), member.mT @ (mean / variance)])
            count = count + member.sum(0)
        total = total / torch.clamp(count, min=1)[:, None]
        return {"precision": total[0], "shift": total[1]}

    def encode(self, model: Tree, x: Tensor, train: bool) -> tuple[Tensor, Tensor, Tree]:
        """μ(x) and the diagonal of Σ(x), ``(n, d)``, and the buffers afterwards."""
        mean, after = self.task.encoder(model["encoder"], model.get("buffers", {}), x, train)
        return mean, F.softplus(linear(model["spread"], mean)) + FLOOR, after

    def _deterministic(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        buffers = params["buffers"]
        values, after = self.task.loss(trained(params) | {"buffers": buffers["network"]}, batch)
        return values, buffers | {"network": after}


def posterior(server: Tree) -> Tree:
    """Return the classes' global posteriors, where there are any."""
    return {name: server[name] for name in ("mean", "variance") if name in server}


def product(precision: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. (22): mean and variance of N(0, 1) times normals with these sums of precisions and of mean times precision.

    >>> product(torch.tensor(1 / 1 + 1 / 0.5), torch.tensor(1 / 1 + 3 / 0.5))  # N(1, 1) and N(3, 0.5)
    (tensor(1.7500), tensor(0.2500))
    """
    variance = 1 / (1 + precision)
    return variance * shift, variance
