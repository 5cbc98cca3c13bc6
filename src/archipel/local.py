"""Local solvers, and the one place where the library differentiates.

Inside ``torch.func.vmap`` gradients come from ``torch.func.grad`` and clients of different sizes are masked; in a loop
they come from plain autograd with fused (foreach) updates and short batches are cut to size, so that neither way pays
for the other. Both take the same steps on the same minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from archipel import keys
from archipel.examples import Draws, Examples, draw_minibatches
from archipel.trees import Tree, norm, tree_map, zeros_like

Batch = dict[str, Tensor]
Loss = Callable[[Tree, Batch], tuple[Tensor, Tree]]
"""``(parameters, batch) → ((B,) losses, one an example; the buffers after this batch, {} where there are none)``."""


def batched() -> bool:
    """Whether this code runs inside ``torch.func.vmap``."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@dataclass(frozen=True)
class Solution:
    """Where a local run ended.

    Args:
        params: the parameters, with their buffers where they have some.
        velocity: the momentum buffer, for those who keep it between rounds.
        loss: the mean over the steps of each minibatch's loss before its update, shape ``()``.
    """

    params: Tree
    velocity: Tree
    loss: Tensor


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum on a client's own examples.

    With g the minibatch's mean gradient plus ``weight_decay`` · θ, clipped to the norm ``clip``:
    d ← μ d + g and θ ← θ − η_t d (Nesterov: θ ← θ − η_t (g + μ d)), d = 0 at the start of each local run unless
    ``keep_momentum``. The rate η_t is constant or falls over rounds as η/2 · (1 + cos(π t/T)).

    Args:
        lr: η, above 0 (0 is allowed: it moves nothing).
        steps: local steps a round; give this or
        epochs: passes over the client's data a round.
        batch: examples a step; ``None``: all of them.
        momentum: μ in [0, 1).
        nesterov: Nesterov's form; needs momentum above 0.
        weight_decay: coefficient of ½‖θ‖², 0 or above.
        schedule: ``"constant"`` or ``"cosine"`` over the run's rounds.
        clip: largest norm of a minibatch's gradient, all parameters together; ``None``: no clipping.
        augment: ``(x, key) → x`` applied to every minibatch's inputs in training.
        keep_momentum: keep d from round to round in the client's state. The algorithm stores it; off, it starts at 0.

    Raises:
        ValueError: a value out of its range, with what was given and what is allowed.

    >>> SGD(lr=0.1, steps=10, momentum=0.9).rate(0, 100)
    tensor(0.1000, dtype=torch.float64)
    >>> SGD(lr=0.1, steps=10, epochs=1)
    Traceback (most recent call last):
    ValueError: SGD takes steps or epochs, one of them; given steps=10 and epochs=1.
    """

    lr: float = 0.01
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = 32
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    clip: float | None = None
    augment: Callable[[Tensor, Tensor], Tensor] | None = None
    keep_momentum: bool = False

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"SGD takes steps or epochs, one of them; given steps={self.steps} and epochs={self.epochs}."
            )
        for name in ("steps", "epochs", "batch"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"SGD's {name} must be a whole number of at least 1; given {value!r}.")
        if not 0 <= self.lr < math.inf:
            raise ValueError(f"SGD's lr must be 0 or above and finite; given {self.lr}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"SGD's momentum must lie in [0, 1); given {self.momentum}.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("SGD's nesterov needs a momentum above 0; set momentum=0.9, say, or nesterov=False.")
        if self.keep_momentum and self.momentum == 0:
            raise ValueError("SGD's keep_momentum needs a momentum above 0; set momentum=0.9, say, or leave it off.")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"SGD's weight_decay must be 0 or above; given {self.weight_decay}.")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"SGD's clip must be above 0, or None for no clipping; given {self.clip}.")
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"SGD's schedule must be 'constant' or 'cosine'; given {self.schedule!r}.")

    def rate(self, round: int, rounds: int) -> Tensor:
        """η_t as a tensor of shape ``()``, to be sent with the round's message."""
        fraction = round / rounds if self.schedule == "cosine" else 0.0
        return torch.tensor(self.lr / 2 * (1 + math.cos(math.pi * fraction)), dtype=torch.float64)

    def draws(self, examples: Examples, key: Tensor) -> Draws:
        """The minibatches that :meth:`minimise` takes with this key."""
        return draw_minibatches(examples, key, self.batch, steps=self.steps, epochs=self.epochs)

    def minimise(
        self, loss: Loss, params: Tree, examples: Examples, key: Tensor, lr: Tensor, velocity: Tree | None = None
    ) -> Solution:
        """Runs the local steps from ``params``.

        Args:
            loss: per-example losses of parameters and a batch (the rows of ``examples`` drawn).
            params: where to start; what stands under a top-level ``"buffers"`` isn't trained but carried along.
            examples: the client's examples with all columns the loss needs.
            key: int64 of shape ``()``; decides minibatches and augmentation.
            lr: η_t of shape ``()``, from :meth:`rate`.
            velocity: d to start from; default: zero.
        """
        trained = {name: value for name, value in params.items() if name != "buffers"}
        buffers = params.get("buffers", {})
        velocity = zeros_like(trained) if velocity is None else velocity
        descend = self._descend_batched if batched() else self._descend_looped
        return descend(loss, trained, buffers, velocity, examples, self.draws(examples, key), key, lr)

    def _batch(self, examples: Examples, index: Tensor, key: Tensor, step: int) -> Batch:
        batch = examples.take(index)
        if self.augment is not None:
            batch["x"] = self.augment(batch["x"], keys.fold(key, "augment", step))
        return batch

    def _descend_looped(
        self,
        loss: Loss,
        trained: Tree,
        buffers: Tree,
        velocity: Tree,
        examples: Examples,
        draws: Draws,
        key: Tensor,
        lr: Tensor,
    ) -> Solution:
        flat, structure = pytree.tree_flatten(trained)
        theta = [p.detach().clone().requires_grad_() for p in flat]
        d = [v.clone() for v in pytree.tree_leaves(velocity)]
        eta, losses = float(lr), []
        counts = draws.mask.sum(1).tolist()
        with torch.enable_grad():
            for step, count in enumerate(counts):
                batch = self._batch(examples, draws.index[step, :count], key, step)
                values, after = loss(_with_buffers(pytree.tree_unflatten(theta, structure), buffers), batch)
                mean = values.mean()
                g = list(torch.autograd.grad(mean, theta, materialize_grads=True))
                losses.append(mean.detach())
                buffers = after if buffers else buffers
                with torch.no_grad():
                    self._update(theta, d, g, eta)
        params = tree_map(Tensor.detach, pytree.tree_unflatten(theta, structure))
        return Solution(_with_buffers(params, buffers), pytree.tree_unflatten(d, structure), torch.stack(losses).mean())

    def _update(self, theta: list[Tensor], d: list[Tensor], g: list[Tensor], eta: float) -> None:
        """One step in place, on lists of tensors."""
        if self.weight_decay:
            torch._foreach_add_(g, theta, alpha=self.weight_decay)
        if self.clip is not None:
            total = torch.stack(torch._foreach_norm(g)).square().sum().sqrt()
            torch._foreach_mul_(g, torch.clamp(self.clip / (total + 1e-12), max=1.0))
        if self.momentum:
            torch._foreach_mul_(d, self.momentum)
            torch._foreach_add_(d, g)
            if self.nesterov:
                torch._foreach_add_(g, d, alpha=self.momentum)
            else:
                g = d
        torch._foreach_add_(theta, g, alpha=-eta)

    def _descend_batched(
        self,
        loss: Loss,
        trained: Tree,
        buffers: Tree,
        velocity: Tree,
        examples: Examples,
        draws: Draws,
        key: Tensor,
        lr: Tensor,
    ) -> Solution:
        def mean_loss(theta: Tree, buffers: Tree, batch: Batch, mask: Tensor) -> tuple[Tensor, Tree]:
            values, after = loss(_with_buffers(theta, buffers), batch)
            # where, not a product: padding may hold anything, and 0 · NaN is NaN
            total = torch.where(mask, values, torch.zeros_like(values)).sum() / torch.clamp(mask.sum(), min=1)
            return total, (total, after if buffers else buffers)

        gradient = torch.func.grad(mean_loss, has_aux=True)
        theta, total = trained, torch.zeros_like(lr)
        for step in range(len(draws.index)):
            mask, active = draws.mask[step], draws.active[step]
            batch = self._batch(examples, draws.index[step], key, step)
            g, (value, after) = gradient(theta, buffers, batch, mask)
            g = tree_map(lambda g, p: g + self.weight_decay * p, g, theta) if self.weight_decay else g
            if self.clip is not None:
                factor = torch.clamp(self.clip / (norm(g) + 1e-12), max=1.0)
                g = tree_map(lambda g, f=factor: g * f, g)
            pushed = tree_map(lambda d, g: self.momentum * d + g, velocity, g)
            move = tree_map(lambda g, d: g + self.momentum * d, g, pushed) if self.nesterov else pushed
            theta = _where(active, tree_map(lambda p, m: p - lr.to(p.dtype) * m, theta, move), theta)
            velocity, buffers = _where(active, pushed, velocity), _where(active, after, buffers)
            total = total + torch.where(active, value, torch.zeros_like(value))
        made = torch.clamp(draws.active.sum(), min=1)
        return Solution(_with_buffers(theta, buffers), velocity, total / made)


def _with_buffers(params: Tree, buffers: Tree) -> Tree:
    return params | {"buffers": buffers} if buffers else params


def _where(condition: Tensor, new: Tree, old: Tree) -> Tree:
    return tree_map(lambda a, b: torch.where(condition, a, b), new, old)
