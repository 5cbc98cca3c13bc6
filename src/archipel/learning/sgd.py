"""Local solvers, and the one place where the library differentiates.

A local run is the same for a client in a loop and for the clients that ``torch.func.vmap`` stacks: plain autograd and
fused (foreach) updates, on the client's tensors or on the stacked ones of all. Only a loss is carried through ``vmap``.
Batches are cut to size where the clients' sizes agree; where they don't, rows are masked, and past the steps that all
make, those who have made theirs are put back where they stood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.autograd import Variable

from archipel.core import keys
from archipel.core.examples import Draws, Examples, draw_minibatches
from archipel.core.trees import Tree, leaves, leaves_like, tree_map, with_leaves
from archipel.core.vmap import Stack
from archipel.learning.compiling import arranged

Batch = dict[str, Tensor]
Loss = Callable[[Tree, Batch], tuple[Tensor, Tree]]
"""``(parameters, batch) → ((B,) losses, one an example; the buffers after this batch, {} where there are none)``."""
Shift = Callable[[Tree], Tree]
"""``trained parameters → a tree like them``, added to the minibatch's gradient at each step."""
Projection = Callable[[Tree], Tree]
"""``trained parameters → a tree like them``, where they are put after each step."""


@dataclass(frozen=True)
class Solution:
    """Where a local run ended.

    Args:
        params: the parameters, with their buffers where they have some.
        velocity: the momentum buffer, for those who keep it between rounds; ``{}`` without momentum.
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
        for step, rows in enumerate(draws.rows):
            count = draws.mask[step].sum() if rows is None else torch.tensor(rows, device=examples.count.device)
            yield Examples(self._batch(examples, draws, key, step), count, 1 if rows is None else rows)

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
        stack, draws = Stack.here(), self.draws(examples, key)
        start, buffers = trained(params), params.get("buffers", {})
        beneath = nullcontext if stack.size is None else stack.beneath
        course = _Course()
        with torch.no_grad():
            with beneath():
                theta = [_own(stack, p).requires_grad_() for p in leaves(start)]
                d = [torch.zeros_like(t) for t in theta] if self.momentum else []
                if self.momentum and velocity is not None:
                    d = [_own(stack, v) for v in leaves_like(start, velocity)]
                eta = stack.under(lr)
                rate = float(eta) if eta.dim() == 0 and eta.is_cpu else eta  # no device is waited for
            model = with_leaves(start, [stack.row(t) for t in theta])
            going = None
            for step, rows in enumerate(draws.rows):
                # Who takes part: a bool for each client, or None where all do.
                who = _both(going, None if step < draws.common else stack.under(draws.active[step]))
                mask = None if rows is not None else stack.under(draws.mask[step])
                with torch.enable_grad():
                    values, after = loss(_with_buffers(model, buffers), self._batch(examples, draws, key, step))
                    values = stack.under(values)
                if buffers:
                    buffers = after if who is None else _where(stack.row(who), after, buffers)
                added = leaves_like(start, shift(model)) if shift else None
                with beneath():
                    g = _gradient(values, course.shares(values, mask, who), theta)
                    g = self._whole(stack, theta, g, added and [stack.under(a) for a in added])
                    if self.tolerance is not None:
                        far = ~(stack.length(g) <= self.tolerance)  # and NaN, which must not look like an end
                        going = far if who is None else who & far
                        if going.is_cpu and not going.any():
                            break
                        who = None if going.is_cpu and stack.size is None else going
                    course.moved.append(who)
                    stood = [] if who is None else [t.clone() for t in theta + d]
                    self._move(stack, theta, d, g, rate)
                if project:
                    placed = leaves_like(start, project(model))
                    with beneath():
                        torch._foreach_copy_(theta, [stack.under(p) for p in placed])
                if who is not None:
                    with beneath():
                        for t, before in zip(theta + d, stood, strict=True):
                            t.copy_(torch.where(stack.along(who, t), t, before))
            with beneath():
                ends, d = ([t.detach().contiguous() for t in found] for found in (theta, d))
                mean, steps = course.mean(), _count(course.moved)
        params = _with_buffers(with_leaves(start, [stack.row(t) for t in ends]), buffers)
        velocity = with_leaves(start, [stack.row(v) for v in d]) if d else {}
        steps = torch.full((), steps) if isinstance(steps, int) else stack.row(steps) if steps.dim() else steps
        return Solution(params, velocity, stack.row(mean), steps)

    def _batch(self, examples: Examples, draws: Draws, key: Tensor, step: int) -> Batch:
        whole = self.batch is None and draws.rows[step] == examples.length  # in their order: nothing to gather
        batch = dict(examples.columns) if whole else examples.take(draws[step])
        if self.augment is not None:
            batch["x"] = self.augment(batch["x"], keys.fold(key, "augment", step))
        return batch

    def _whole(self, stack: Stack, theta: list[Tensor], g: list[Tensor], added: list[Tensor] | None) -> list[Tensor]:
        """The gradient with all that belongs to it; not in place, since autograd may alias what it hands out."""
        if self.clip is not None:
            factor = torch.clamp(self.clip / (stack.length(g) + 1e-12), max=1.0)
            g = [t * stack.along(factor, t) for t in g]
        if self.weight_decay:
            g = list(torch._foreach_add(g, theta, alpha=self.weight_decay))
        return list(torch._foreach_add(g, added)) if added is not None else g

    def _move(self, stack: Stack, theta: list[Tensor], d: list[Tensor], g: list[Tensor], eta: Tensor | float) -> None:
        """One step; ``theta`` and ``d`` change in place."""
        if self.momentum:
            torch._foreach_mul_(d, self.momentum)
            torch._foreach_add_(d, g)
            g = list(torch._foreach_add(g, d, alpha=self.momentum)) if self.nesterov else d
        if isinstance(eta, float):
            torch._foreach_add_(theta, g, alpha=-eta)
        else:
            torch._foreach_sub_(theta, [stack.along(eta, t).to(t.dtype) * t for t in g])
        torch.clear_autocast_cache()  # it keeps what it has cast of the parameters, and they have changed


@dataclass
class _Course:
    """What a local run's steps leave behind.

    Args:
        totals: each minibatch's sum of losses; 0 of clients who took no part.
        sizes: by what it is to be divided: at the end, since ``mean`` is a sum and a division.
        asked: who took part, None where all did.
        moved: whose parameters moved, likewise.
        even: 1/B for each of B losses, made once for all minibatches of a size.
    """

    totals: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    asked: list[Tensor | None] = field(default_factory=list)
    moved: list[Tensor | None] = field(default_factory=list)
    even: Tensor | None = None

    def shares(self, values: Tensor, mask: Tensor | None, who: Tensor | None) -> Tensor:
        """What each of a minibatch's losses ``(…, B)`` counts in their mean: those that the mask lets count."""
        if mask is None:
            if self.even is None or self.even.shape != values.shape:
                self.even = torch.full_like(values, 1 / max(values.shape[-1], 1))
            share, total, size = self.even, values.sum(-1), values.shape[-1]
        else:
            share = mask.to(values.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)
            # Left out, not multiplied by 0: padding may hold anything, and 0 · NaN is NaN.
            total, size = (values.masked_fill(~mask, 0.0) * share).sum(-1), 1
        self.totals.append(total if who is None else torch.where(who, total, 0.0))
        self.sizes.append(size)
        self.asked.append(who)
        return share

    def mean(self) -> Tensor:
        """The mean over the steps of the minibatches' mean losses, for each client."""
        totals, taken = torch.stack(self.totals), _count(self.asked)
        if len(set(self.sizes)) == 1:
            return totals.sum(0) / (self.sizes[0] * taken)
        sizes = torch.tensor(self.sizes, device=totals.device).reshape(-1, *[1] * (totals.dim() - 1))
        return (totals / sizes).sum(0) / taken


def _own(stack: Stack, tensor: Tensor) -> Tensor:
    """A copy to change. A convolution's weights lie as images do: otherwise they are turned in every step."""
    copy = stack.own(tensor)
    return arranged(copy) if stack.size is None else copy


def _gradient(values: Tensor, share: Tensor, theta: list[Tensor]) -> list[Tensor]:
    """The gradient of a minibatch's losses ``(…, B)``, each as much as its share; per client."""
    # What torch.autograd.grad calls, without what it goes through before: a third of a small model's step, and SymPy,
    # which it loads to compare two shapes.
    found = Variable._execution_engine.run_backward(
        (values,), (share,), False, False, tuple(theta), allow_unreachable=True, accumulate_grad=False
    )
    return [torch.zeros_like(t) if g is None else g for t, g in zip(theta, found, strict=True)]


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Those who are in both, where None stands for everyone."""
    return other if one is None else one if other is None else one & other


def _count(steps: list[Tensor | None]) -> Tensor | int:
    """In how many of the steps each client took part, or everyone did."""
    some = [who for who in steps if who is not None]
    common = len(steps) - len(some)
    return torch.stack(some).sum(0) + common if some else common


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
