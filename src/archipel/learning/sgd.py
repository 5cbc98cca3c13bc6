"""The local solver, and the one place where the library differentiates.

A local run has the same code for a client in a loop and for clients that ``torch.func.vmap`` stacks: plain autograd and
fused (foreach) updates, on the client's tensors or on the stacked tensors of all. Only the loss runs inside ``vmap``.
Batches are cut to size where the clients' sizes agree. Otherwise rows are masked, and clients that have made all their
steps are reset after every further step of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.checks import Interval, NonNegative, Positive, PositiveInt, check_settings, setting
from archipel.core.examples import Examples
from archipel.core.minibatches import MinibatchPlan, plan_minibatches
from archipel.core.torch_internals import (
    foreach_add,
    foreach_add_,
    foreach_copy_,
    foreach_mul_,
    foreach_sub_,
    gradients,
)
from archipel.core.trees import Tree, leaves, leaves_like, tree_map, with_leaves
from archipel.core.vmap import VmapLevel
from archipel.learning.compiling import to_memory_format
from archipel.learning.loss_record import LossRecord, both, count_steps

Batch = dict[str, Tensor]
Loss = Callable[[Tree, Batch], tuple[Tensor, Tree]]
"""``(parameters, batch) → ((B,) losses, one for each example; the buffers after this batch, {} if there are none)``."""
Shift = Callable[[Tree], Tree]
"""``trained parameters → a tree like them``, which is added to the minibatch's gradient at each step."""
Projection = Callable[[Tree], Tree]
"""``trained parameters → a tree like them``, which replaces them after each step."""


@dataclass(frozen=True)
class Solution:
    """The end of a local run.

    Args:
        params: the parameters, with their buffers if the model has some.
        velocity: the momentum buffer, for methods that keep it between rounds; ``{}`` without momentum.
        loss: the mean over the steps of each minibatch's mean loss before its update, shape ``()``.
        steps: how many updates were made, shape ``()``.
    """

    params: Tree
    velocity: Tree
    loss: Tensor
    steps: Tensor


@setting("a solver, SGD(lr=0.01, epochs=1), say")
@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum on a client's own examples.

    The gradient g is the minibatch's mean gradient, clipped to the norm ``clip``, plus ``weight_decay`` · θ, plus the
    method's own term (``shift`` of :meth:`minimise`). A step is d ← μ d + g and θ ← θ − η_t d, or with Nesterov's form
    θ ← θ − η_t (g + μ d). Each local run starts with d = 0 unless ``keep_momentum`` is set. These are the steps of
    torch's ``clip_grad_norm_`` followed by its ``SGD``. The rate η_t is constant, or falls over the T rounds as
    η/2 · (1 + cos(π t/T)).

    Args:
        lr: η, 0 or above; 0 moves nothing.
        steps: local steps in a round, at least 1. Give exactly one of steps and epochs.
        epochs: passes over the client's data in a round, at least 1.
        batch: examples in a step, at least 1; ``None``: all of them.
        momentum: μ in [0, 1).
        nesterov: use Nesterov's form; needs a momentum above 0.
        weight_decay: coefficient of ½‖θ‖², 0 or above.
        schedule: ``"constant"``, or ``"cosine"`` over the run's rounds.
        clip: largest norm of a minibatch's gradient, over all parameters together, above 0; ``None``: no clipping.
        augment: ``(x, key) → x``, applied to every minibatch's inputs in training.
        keep_momentum: keep d from round to round in the client's state; needs a momentum above 0.
        tolerance: end a local run at the first step where the norm of g is at most this, 0 or above. With
            ``batch=None`` the run is then a solve. ``None``: every step is made.

    Raises:
        ValueError: a value is out of its range; the message says what was given and what is allowed.

    >>> SGD(lr=0.1, steps=10, momentum=0.9).rate(0, 100)
    tensor(0.1000, dtype=torch.float64)
    >>> SGD(lr=0.1, steps=10, epochs=1)
    Traceback (most recent call last):
    ValueError: SGD takes exactly one of steps and epochs; given steps=10 and epochs=1.
    """

    lr: NonNegative = 0.01
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    batch: PositiveInt | None = 32
    momentum: Annotated[float, Interval(0, 1, "[)")] = 0.0
    nesterov: bool = False
    weight_decay: NonNegative = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    clip: Positive | None = None
    augment: Callable[[Tensor, Tensor], Tensor] | None = None
    keep_momentum: bool = False
    tolerance: NonNegative | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"SGD takes exactly one of steps and epochs; given steps={self.steps} and epochs={self.epochs}."
            )
        check_settings(self)
        if self.nesterov and self.momentum == 0:
            raise ValueError("SGD's nesterov needs a momentum above 0; set momentum=0.9, say, or nesterov=False.")
        if self.keep_momentum and self.momentum == 0:
            raise ValueError("SGD's keep_momentum needs a momentum above 0; set momentum=0.9, say, or leave it off.")

    def rate(self, round: int, rounds: int) -> Tensor:
        """Return η_t as a tensor of shape ``()``, to be sent with the round's message."""
        fraction = round / rounds if self.schedule == "cosine" else 0.0
        return torch.tensor(self.lr / 2 * (1 + math.cos(math.pi * fraction)), dtype=torch.float64)

    def plan(self, examples: Examples, key: Tensor) -> MinibatchPlan:
        """Return the minibatches that :meth:`minimise` takes with this key."""
        return plan_minibatches(examples, key, self.batch, steps=self.steps, epochs=self.epochs)

    def minibatches(self, examples: Examples, key: Tensor) -> Iterator[Examples]:
        """Yield the same minibatches, augmented, for methods that solve a problem on every minibatch."""
        plan = self.plan(examples, key)
        for step, rows in enumerate(plan.row_counts):
            count = plan.mask[step].sum() if rows is None else torch.tensor(rows, device=examples.count.device)
            yield Examples(self._batch(examples, plan, key, step), count, 1 if rows is None else rows)

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
        """Run the local steps from ``params``.

        Args:
            loss: losses of parameters on a batch (rows of ``examples``), one for each example.
            params: where to start. What lies under a top-level ``"buffers"`` isn't trained but carried along.
            examples: the client's examples with all columns that the loss needs.
            key: int64 of shape ``()``; decides minibatches and augmentation.
            lr: η_t of shape ``()``, from :meth:`rate`.
            velocity: d to start from; default: zero.
            shift: what a method adds to the gradient, as a function of the current trained parameters: a proximal term
                (:func:`proximal`), a control variate. ``clip`` acts against noise of the data, so it clips the data's
                gradient alone, not this exact term. Momentum takes both.
            project: where each step puts the trained parameters afterwards: a projection, a proximal map.
        """
        level, plan = VmapLevel.current(), self.plan(examples, key)
        start, buffers = trained(params), params.get("buffers", {})
        outside = nullcontext if level.size is None else level.outside
        record = LossRecord()
        with torch.no_grad():
            with outside():
                theta = [_copy(level, p).requires_grad_() for p in leaves(start)]
                d = [torch.zeros_like(t) for t in theta] if self.momentum else []
                if self.momentum and velocity is not None:
                    d = [_copy(level, v) for v in leaves_like(start, velocity)]
                eta = level.unwrap(lr)
                rate = float(eta) if eta.dim() == 0 and eta.is_cpu else eta  # reading it off a GPU would wait for it
            model = with_leaves(start, [level.wrap(t) for t in theta])
            going = None  # who hasn't reached the tolerance
            for step, rows in enumerate(plan.row_counts):
                who = both(going, None if step < plan.common_steps else level.unwrap(plan.active[step]))
                mask = None if rows is not None else level.unwrap(plan.mask[step])
                with torch.enable_grad():
                    values, after = loss(_with_buffers(model, buffers), self._batch(examples, plan, key, step))
                    values = level.unwrap(values)
                if buffers:
                    buffers = after if who is None else _where(level.wrap(who), after, buffers)
                added = leaves_like(start, shift(model)) if shift else None
                with outside():
                    share = record.shares(values, mask, who)
                    found = gradients(values, share, theta) if theta else ()  # there may be nothing to train
                    g = [torch.zeros_like(t) if one is None else one for t, one in zip(theta, found, strict=True)]
                    g = self._whole(level, theta, g, added and [level.unwrap(a) for a in added])
                    if self.tolerance is not None:
                        far = ~(level.norm(g) <= self.tolerance)  # NaN counts as far: it must not look like an end
                        going = far if who is None else who & far
                        if going.is_cpu and not going.any():
                            break
                        who = None if going.is_cpu and level.size is None else going
                    record.moved.append(who)
                    before = [] if who is None else [t.clone() for t in theta + d]
                    self._move(level, theta, d, g, rate)
                if project and theta:
                    projected = leaves_like(start, project(model))
                    with outside():
                        foreach_copy_(theta, [level.unwrap(p) for p in projected])
                if who is not None:
                    with outside():
                        for t, old in zip(theta + d, before, strict=True):
                            t.copy_(torch.where(level.broadcast(who, t), t, old))
            with outside():
                ends, d = ([t.detach().contiguous() for t in found] for found in (theta, d))
                mean, steps = record.mean(), count_steps(record.moved)
        params = _with_buffers(with_leaves(start, [level.wrap(t) for t in ends]), buffers)
        velocity = with_leaves(start, [level.wrap(v) for v in d]) if d else {}
        steps = torch.full((), steps) if isinstance(steps, int) else level.wrap(steps) if steps.dim() else steps
        return Solution(params, velocity, level.wrap(mean), steps)

    def _batch(self, examples: Examples, plan: MinibatchPlan, key: Tensor, step: int) -> Batch:
        whole = self.batch is None and plan.row_counts[step] == examples.length  # in stored order: nothing to gather
        batch = dict(examples.columns) if whole else examples.take(plan[step])
        if self.augment is not None:
            batch["x"] = self.augment(batch["x"], keys.fold(key, "augment", step))
        return batch

    def _whole(
        self, level: VmapLevel, theta: list[Tensor], g: list[Tensor], added: list[Tensor] | None
    ) -> list[Tensor]:
        """Return the gradient with clipping, decay and shift; not in place, since autograd may alias its results."""
        if not theta:
            return g
        if self.clip is not None:
            factor = torch.clamp(self.clip / (level.norm(g) + 1e-6), max=1.0)
            g = [t * level.broadcast(factor, t) for t in g]
        if self.weight_decay:
            g = list(foreach_add(g, theta, alpha=self.weight_decay))
        return list(foreach_add(g, added)) if added is not None else g

    def _move(
        self, level: VmapLevel, theta: list[Tensor], d: list[Tensor], g: list[Tensor], eta: Tensor | float
    ) -> None:
        """Make one step; ``theta`` and ``d`` change in place."""
        if not theta:
            return
        if self.momentum:
            foreach_mul_(d, self.momentum)
            foreach_add_(d, g)
            g = list(foreach_add(g, d, alpha=self.momentum)) if self.nesterov else d
        if isinstance(eta, float):
            foreach_add_(theta, g, alpha=-eta)
        else:
            foreach_sub_(theta, [level.broadcast(eta, t).to(t.dtype) * t for t in g])
        torch.clear_autocast_cache()  # it holds casts of the parameters, which have changed


def _copy(level: VmapLevel, tensor: Tensor) -> Tensor:
    """Copy parameters, convolutions' weights in the images' memory format: torch would convert them in every step."""
    copy = level.copy(tensor)
    return to_memory_format(copy) if level.size is None else copy


def trained(model: Tree) -> Tree:
    """Return the part of a model that training moves: all but its buffers."""
    return {name: tree for name, tree in model.items() if name != "buffers"}


def untrained(model: Tree) -> Tree:
    """Return the rest of a model: its buffers, under their name, where it has some."""
    return {name: tree for name, tree in model.items() if name == "buffers"}


def proximal(penalty: float, centre: Tree) -> Shift:
    """Return the gradient of ½ · penalty · ‖θ − centre‖², penalty · (θ − centre); the centre's buffers don't count.

    >>> proximal(2.0, {"theta": torch.ones(2)})({"theta": torch.tensor([1.0, 4.0])})
    {'theta': tensor([0., 6.])}
    """
    fixed = trained(centre)
    return lambda params: tree_map(lambda p, c: penalty * (p - c), params, fixed)


def soft_threshold(threshold: Tensor) -> Projection:
    """Return the proximal map of threshold · ‖θ‖₁: every entry moves towards 0 by the threshold, and stops there.

    >>> soft_threshold(torch.tensor(1.0))({"theta": torch.tensor([3.0, -0.5])})
    {'theta': tensor([2., 0.])}
    """
    return lambda params: tree_map(lambda p: p - p.clamp(-threshold.to(p.dtype), threshold.to(p.dtype)), params)


def _with_buffers(params: Tree, buffers: Tree) -> Tree:
    return params | {"buffers": buffers} if buffers else params


def _where(condition: Tensor, new: Tree, old: Tree) -> Tree:
    return tree_map(lambda a, b: torch.where(condition, a, b), new, old)
