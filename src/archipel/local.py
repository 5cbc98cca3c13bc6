"""Local solvers, and the one place where the library differentiates.

Inside ``torch.func.vmap`` gradients come from ``torch.func.grad`` and clients of different sizes are masked; in a loop
they come from plain autograd with fused (foreach) updates and short batches are cut to size, so that neither way pays
for the other. Both take the same steps on the same minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
Shift = Callable[[Tree], Tree]
"""``trained parameters → a tree like them``, added to the minibatch's gradient at each step."""
Projection = Callable[[Tree], Tree]
"""``trained parameters → a tree like them``, where they are put after each step."""


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
        steps: how many updates were made, shape ``()``.
    """

    params: Tree
    velocity: Tree
    loss: Tensor
    steps: Tensor


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum on a client's own examples.

    With g the minibatch's mean gradient, clipped to the norm ``clip``, plus ``weight_decay`` · θ (and the method's own
    term, see ``shift`` of :meth:`minimise`):
    d ← μ d + g and θ ← θ − η_t d (Nesterov: θ ← θ − η_t (g + μ d)), d = 0 at the start of each local run unless
    ``keep_momentum``; as torch's ``clip_grad_norm_`` followed by its ``SGD``. The rate η_t is constant or falls over
    rounds as η/2 · (1 + cos(π t/T)).

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
        tolerance: end a local run where the whole gradient's norm is at most this, before all its steps are made: a
            solve (with ``batch=None``) instead of a number of steps; ``None``: every step is made.

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
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"SGD takes steps or epochs, one of them; given steps={self.steps} and epochs={self.epochs}."
            )
        for name in ("steps", "epochs", "batch"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"SGD's {name} must be a whole number of at least 1; given {value!r}.")
        for name in ("lr", "momentum", "weight_decay", "clip", "tolerance"):
            value, absent = getattr(self, name), name in ("clip", "tolerance")
            if isinstance(value, bool) or not (isinstance(value, int | float) or (value is None and absent)):
                raise ValueError(f"SGD's {name} must be a number; given {value!r}.")
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
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(f"SGD's tolerance must be 0 or above, or None; given {self.tolerance}.")
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"SGD's schedule must be 'constant' or 'cosine'; given {self.schedule!r}.")

    def rate(self, round: int, rounds: int) -> Tensor:
        """η_t as a tensor of shape ``()``, to be sent with the round's message."""
        fraction = round / rounds if self.schedule == "cosine" else 0.0
        return torch.tensor(self.lr / 2 * (1 + math.cos(math.pi * fraction)), dtype=torch.float64)

    def draws(self, examples: Examples, key: Tensor) -> Draws:
        """The minibatches that :meth:`minimise` takes with this key."""
        return draw_minibatches(examples, key, self.batch, steps=self.steps, epochs=self.epochs)

    def minibatches(self, examples: Examples, key: Tensor) -> Iterator[Examples]:
        """The same, augmented, each as examples of its own: for methods that solve a problem on every minibatch."""
        draws = self.draws(examples, key)
        for step, mask in enumerate(draws.mask):
            yield Examples(self._batch(examples, draws.index[step], key, step), mask.sum(), 1)

    def minimise(
        self,
        loss: Loss,
        params: Tree,
        examples: Examples,
        key: Tensor,
        lr: Tensor,
        velocity: Tree | None = None,
        shift: Shift | None = None,
        project: Projection | None = None,
    ) -> Solution:
        """Runs the local steps from ``params``.

        Args:
            loss: per-example losses of parameters and a batch (the rows of ``examples`` drawn).
            params: where to start; what stands under a top-level ``"buffers"`` isn't trained but carried along.
            examples: the client's examples with all columns the loss needs.
            key: int64 of shape ``()``; decides minibatches and augmentation.
            lr: η_t of shape ``()``, from :meth:`rate`.
            velocity: d to start from; default: zero.
            shift: what a method adds to the gradient, as a function of the trained parameters where they stand: a
                proximal term (:func:`proximal`), a control variate. It is exact, so that it isn't clipped: ``clip`` is
                against noise of the data, and clips the data's gradient alone. Momentum takes both.
            project: where the trained parameters are put after each step: a projection, a proximal map.
        """
        start, buffers = trained(params), params.get("buffers", {})
        velocity = zeros_like(start) if velocity is None else velocity
        descend = self._descend_batched if batched() else self._descend_looped
        return descend(loss, start, buffers, velocity, examples, self.draws(examples, key), key, lr, shift, project)

    def _batch(self, examples: Examples, index: Tensor, key: Tensor, step: int) -> Batch:
        batch = examples.take(index)
        if self.augment is not None:
            batch["x"] = self.augment(batch["x"], keys.fold(key, "augment", step))
        return batch

    def _descend_looped(
        self,
        loss: Loss,
        start: Tree,
        buffers: Tree,
        velocity: Tree,
        examples: Examples,
        draws: Draws,
        key: Tensor,
        lr: Tensor,
        shift: Shift | None,
        project: Projection | None,
    ) -> Solution:
        flat, structure = pytree.tree_flatten(start)
        theta = [p.detach().clone().requires_grad_() for p in flat]
        d = [v.clone() for v in structure.flatten_up_to(velocity)]
        eta, losses, steps = float(lr), [], 0
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
                    here = pytree.tree_unflatten(theta, structure)
                    g = self._whole(theta, g, shift and structure.flatten_up_to(shift(here)))
                    if self.tolerance is not None and float(_length(g)) <= self.tolerance:
                        break
                    self._move(theta, d, g, eta)
                    steps += 1
                    if project:
                        torch._foreach_copy_(theta, structure.flatten_up_to(project(here)))
        params = tree_map(Tensor.detach, pytree.tree_unflatten(theta, structure))
        return Solution(
            _with_buffers(params, buffers),
            pytree.tree_unflatten(d, structure),
            torch.stack(losses).mean(),
            torch.tensor(steps),
        )

    def _whole(self, theta: list[Tensor], g: list[Tensor], added: list[Tensor] | None) -> list[Tensor]:
        """The gradient with all that belongs to it; not in place, since autograd may alias what it hands out."""
        if self.clip is not None:
            g = list(torch._foreach_mul(g, torch.clamp(self.clip / (_length(g) + 1e-12), max=1.0)))
        if self.weight_decay:
            g = list(torch._foreach_add(g, theta, alpha=self.weight_decay))
        return list(torch._foreach_add(g, added)) if added is not None else g

    def _move(self, theta: list[Tensor], d: list[Tensor], g: list[Tensor], eta: float) -> None:
        """One step; ``theta`` and ``d`` change in place."""
        if self.momentum:
            torch._foreach_mul_(d, self.momentum)
            torch._foreach_add_(d, g)
            g = list(torch._foreach_add(g, d, alpha=self.momentum)) if self.nesterov else d
        torch._foreach_add_(theta, g, alpha=-eta)

    def _descend_batched(
        self,
        loss: Loss,
        start: Tree,
        buffers: Tree,
        velocity: Tree,
        examples: Examples,
        draws: Draws,
        key: Tensor,
        lr: Tensor,
        shift: Shift | None,
        project: Projection | None,
    ) -> Solution:
        def mean_loss(theta: Tree, buffers: Tree, batch: Batch, mask: Tensor) -> tuple[Tensor, Tree]:
            values, after = loss(_with_buffers(theta, buffers), batch)
            # where, not a product: padding may hold anything, and 0 · NaN is NaN
            total = torch.where(mask, values, torch.zeros_like(values)).sum() / torch.clamp(mask.sum(), min=1)
            return total, (total, after if buffers else buffers)

        gradient = torch.func.grad(mean_loss, has_aux=True)
        theta, losses, counted, made = start, [], [], []
        going = draws.active.new_ones(())
        for step in range(len(draws.index)):
            mask, asked = draws.mask[step], draws.active[step] & going
            batch = self._batch(examples, draws.index[step], key, step)
            g, (value, after) = gradient(theta, buffers, batch, mask)
            if self.clip is not None:
                factor = torch.clamp(self.clip / (norm(g) + 1e-12), max=1.0)
                g = tree_map(lambda g, f=factor: g * f, g)
            g = tree_map(lambda g, p: g + self.weight_decay * p, g, theta) if self.weight_decay else g
            g = tree_map(torch.add, g, shift(theta)) if shift else g
            active = going = asked if self.tolerance is None else asked & (norm(g) > self.tolerance)
            pushed = tree_map(lambda d, g: self.momentum * d + g, velocity, g)
            move = tree_map(lambda g, d: g + self.momentum * d, g, pushed) if self.nesterov else pushed
            moved = tree_map(lambda p, m: p - lr.to(p.dtype) * m, theta, move)
            theta = _where(active, project(moved) if project else moved, theta)
            velocity, buffers = _where(active, pushed, velocity), _where(asked, after, buffers)
            losses.append(torch.where(asked, value, torch.zeros_like(value)))
            counted.append(asked)
            made.append(active)
        mean = torch.stack(losses).sum() / torch.clamp(torch.stack(counted).sum(), min=1)
        return Solution(_with_buffers(theta, buffers), velocity, mean, torch.stack(made).sum())


def _length(tensors: list[Tensor]) -> Tensor:
    """The norm of all of them together."""
    return torch.stack(torch._foreach_norm(tensors)).square().sum().sqrt()


def trained(model: Tree) -> Tree:
    """What training moves: a model without its buffers."""
    return {name: tree for name, tree in model.items() if name != "buffers"}


def proximal(penalty: float, centre: Tree) -> Shift:
    """The gradient of ½ · penalty · ‖θ − centre‖², penalty · (θ − centre); the centre's buffers don't count.

    >>> proximal(2.0, {"theta": torch.ones(2)})({"theta": torch.tensor([1.0, 4.0])})
    {'theta': tensor([0., 6.])}
    """
    fixed = trained(centre)
    return lambda params: tree_map(lambda p, c: penalty * (p - c), params, fixed)


def soft_threshold(threshold: Tensor) -> Projection:
    """The proximal map of threshold · ‖θ‖₁: every entry moves towards 0 by the threshold, and stops there.

    >>> soft_threshold(torch.tensor(1.0))({"theta": torch.tensor([3.0, -0.5])})
    {'theta': tensor([2., 0.])}
    """
    return lambda params: tree_map(lambda p: p - p.clamp(-threshold.to(p.dtype), threshold.to(p.dtype)), params)


def _with_buffers(params: Tree, buffers: Tree) -> Tree:
    return params | {"buffers": buffers} if buffers else params


def _where(condition: Tensor, new: Tree, old: Tree) -> Tree:
    return tree_map(lambda a, b: torch.where(condition, a, b), new, old)
