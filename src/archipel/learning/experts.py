"""C predictive models that a mixture weighs: their parameters, their losses and their common answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.examples import Examples
from archipel.core.trees import Tree, stack
from archipel.learning import batch_norm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.networks import Copies, encoder_model, linear_init
from archipel.learning.sgd import Batch
from archipel.learning.tasks import Supervised


@dataclass(frozen=True, eq=False)
class Experts:
    """C heads of one task, on one encoder or on an encoder each.

    Parameters are ``{"encoder": …, "heads": {"weight", "bias"}}``, the heads' ``(C, K, features)`` and ``(C, K)``, and
    ``"buffers"`` where the encoders have some.

    Args:
        task: one expert's encoder, head and criterion.
        count: C.
        shared: one encoder for all experts (1×), or one each (C×).

    >>> from archipel.learning.criteria import CrossEntropy
    >>> from archipel.learning.networks import Network
    >>> experts = Experts(Supervised(Network(torch.nn.Linear(4, 2)), 2, 3, CrossEntropy()), 5, shared=True)
    >>> experts.outputs(experts.init(keys.key(0)), torch.zeros(7, 4))[0].shape
    torch.Size([7, 5, 3])
    """

    task: Supervised
    count: int
    shared: bool

    @property
    def encoder(self) -> Copies:
        return Copies(self.task.encoder, self.count, self.shared)

    def init(self, key: Tensor) -> Tree:
        """Parameters to start from; every expert has draws of its own."""
        heads = [
            linear_init(keys.fold(key, "head", c), self.task.outputs, self.task.features) for c in range(self.count)
        ]
        return encoder_model(self.encoder, keys.fold(key, "encoder")) | {"heads": stack(heads)}

    def outputs(self, params: Tree, x: Tensor, train: bool = False) -> tuple[Tensor, Tree]:
        """``(n, C, K)``, and the buffers afterwards."""
        z, buffers = self.encoder(params["encoder"], params.get("buffers", {}), x, train)
        return self.answers(params["heads"], z), buffers

    def embed(self, model: Tree, x: Tensor, policy: BatchNorm) -> Tensor:
        """All experts' outputs; x itself where clients normalise by statistics of their own."""
        return x if batch_norm.is_local(policy, model) else self.outputs(model, x)[0]

    def own(self, model: Tree, client: Tree, embedded: Tensor, policy: BatchNorm) -> Tensor:
        """Return the outputs that a client predicts with, ``(n, C, K)``, from what :meth:`embed` returned."""
        if not batch_norm.is_local(policy, model):
            return embedded
        return self.outputs(batch_norm.receive(policy, model, client), embedded)[0]

    def answers(self, heads: Tree, z: Tensor) -> Tensor:
        """Return the outputs ``(n, C, K)`` of features ``(n, C, features)``; ``(n, 1, features)`` are for all heads."""
        bias: Tensor = heads["bias"]
        return torch.einsum("ncd,ckd->nck", z.expand(-1, self.count, -1), heads["weight"]) + bias

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``(n, C)``: −log p_c(y|x)."""
        return torch.stack([self.task.criterion.loss(outputs[:, c], y) for c in range(self.count)], dim=1)

    def weighted_loss(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Σ_c w_jc (−log p_c(y_j|x_j)) with weights ``batch["w"]``, ``(n, C)``: what an M-step minimises."""
        outputs, buffers = self.outputs(params, batch["x"], train=True)
        return (batch["w"] * self.losses(outputs, batch["y"])).sum(1), buffers

    def log_likelihoods(self, params: Tree, examples: Examples) -> Tensor:
        """``(N, C)``: log p_c(y_j|x_j) of all examples, padding included, as an E-step needs them."""
        return examples.in_pieces(lambda batch: -self.losses(self.outputs(params, batch["x"])[0], batch["y"]))


def recomputed(encoder: Copies, model: Tree, examples: Examples) -> Tree:
    """Statistics of the encoders' BatchNorm on these examples, for the policy ``"recompute"``."""

    def passed(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return encoder(params["encoder"], params["buffers"], batch["x"], train=True)

    return batch_norm.recompute(passed, encoder, model, examples)


def posterior(log_weights: Tensor, log_likelihoods: Tensor) -> Tensor:
    """Return the posterior over components, q_jc ∝ exp(log-weight_jc + log-likelihood_jc).

    The largest likelihood is subtracted first: at −10,000 the last digit of a float32 is 0.001, and a log weight that
    is added there is rounded to it.

    Args:
        log_weights: ``(C,)``, or ``(n, C)`` if the weights depend on the input.
        log_likelihoods: ``(n, C)``.

    >>> pi = torch.tensor([0.75, 0.25])
    >>> posterior(pi.log(), torch.tensor([[-2.0, -2.0], [-1e5, -2e5]]))
    tensor([[0.7500, 0.2500],
            [1.0000, 0.0000]])
    """
    relative = log_likelihoods - log_likelihoods.amax(-1, keepdim=True)
    return torch.softmax(log_weights + relative, dim=-1)


def joint_posterior(pi: Tensor, log_densities: Tensor, log_likelihoods: Tensor) -> Tensor:
    """Return the posterior over pairs of a Gaussian and an expert, in the likelihoods' type.

    γ_j(a, b) ∝ π(a, b) · density_j(a) · likelihood_j(b).

    Args:
        pi: ``(M₁, M₂)``.
        log_densities: ``(n, M₁)``.
        log_likelihoods: ``(n, M₂)``.

    >>> joint_posterior(torch.tensor([[0.5, 0.1], [0.1, 0.3]]), torch.zeros(1, 2), torch.zeros(1, 2))
    tensor([[[0.5000, 0.1000],
             [0.1000, 0.3000]]])
    """
    log_joint = pi.log() + log_densities[:, :, None] + log_likelihoods[:, None, :]
    return torch.softmax(log_joint.flatten(1), dim=1).reshape(log_joint.shape).to(log_likelihoods.dtype)
