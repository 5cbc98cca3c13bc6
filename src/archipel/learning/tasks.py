"""Tasks: what is learnt, as initial parameters, a loss for each example, and predictions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from archipel.core import keys
from archipel.core.checks import setting
from archipel.core.examples import Examples
from archipel.core.trees import Tree
from archipel.data.inputs import Inputs
from archipel.learning.criteria import Criterion, CrossEntropy, SquaredError
from archipel.learning.networks import Initial, Network, encoder_model, linear, linear_init
from archipel.learning.sgd import Batch


def _learns(value: object) -> bool:
    return hasattr(value, "init") and hasattr(value, "loss")


@setting(
    "a task, made by classification(encoder, federation), regression(encoder, federation) or "
    "Whole(Network(module, federation.inputs), CrossEntropy())",
    _learns,
)
class Task(Protocol):
    """What an algorithm needs of a task: initial parameters, a loss for each example, and predictions."""

    def init(self, key: Tensor) -> Tree:
        """Return initial parameters, a tree; what lies under ``"buffers"`` isn't trained."""

    def loss(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Return ``(B,)`` losses in training mode, and the buffers after this batch."""

    def predict(self, params: Tree, x: Tensor) -> Tensor:
        """Return ``(n, K)`` log-probabilities, or ``(n, outputs)`` values."""


@setting("an encoder and a head, made by classification(encoder, federation) or regression(encoder, federation)")
@dataclass(frozen=True, eq=False)
class Supervised:
    """An encoder, a linear head and a criterion; :func:`classification` and :func:`regression` make such tasks.

    Parameters are ``{"encoder": …, "head": {"weight", "bias"}}``, and ``"buffers"`` if the encoder has some, so that a
    method can share one part and keep another at the clients.

    Args:
        encoder: ``(n, *shape) → (n, features)``.
        features: the encoder's output width.
        outputs: K, the head's output width.
        criterion: the loss.
    """

    encoder: Network
    features: int
    outputs: int
    criterion: Criterion

    def init(self, key: Tensor) -> Tree:
        head = linear_init(keys.fold(key, "head"), self.outputs, self.features)
        return encoder_model(self.encoder, keys.fold(key, "encoder")) | {"head": head}

    def loss(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        z, buffers = self.encoder(params["encoder"], params.get("buffers", {}), batch["x"], train=True)
        return self.criterion.loss(linear(params["head"], z), batch["y"]), buffers

    def predict(self, params: Tree, x: Tensor) -> Tensor:
        return self.answer(params, self.embed(params, x))

    def embed(self, params: Tree, x: Tensor) -> Tensor:
        """Return the encoder's features as it predicts."""
        return self.encoder(params["encoder"], params.get("buffers", {}), x)[0]

    def answer(self, params: Tree, z: Tensor) -> Tensor:
        """Return what the head says of features, as ``predict`` says it of x."""
        return self.criterion.report(linear(params["head"], z))

    def losses(self, params: Tree, batch: Batch) -> Tensor:
        """Return ``(n,)`` losses of the model as it predicts."""
        return self.criterion.loss(linear(params["head"], self.embed(params, batch["x"])), batch["y"])


@dataclass(frozen=True, eq=False)
class Whole:
    """Any module with a criterion, for methods that don't divide a model into encoder and head.

    Parameters are ``{"module": …}``, and ``"buffers"`` if the module has some.

    Args:
        module: ``(n, *shape) → (n, K)``.
        criterion: the loss.

    >>> import torch
    >>> task = Whole(Network(nn.Linear(4, 3)), CrossEntropy())
    >>> task.predict(task.init(keys.key(0)), torch.zeros(2, 4)).exp().sum(1)
    tensor([1., 1.])
    """

    module: Network
    criterion: Criterion

    def __post_init__(self) -> None:
        if not isinstance(self.module, Network):
            raise TypeError(f"Whole takes a Network(module, federation.inputs); given a {type(self.module).__name__}.")

    def init(self, key: Tensor) -> Tree:
        params, buffers = self.module.init(keys.fold(key, "encoder"))
        return {"module": params} | ({"buffers": buffers} if buffers else {})

    def loss(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        outputs, buffers = self.module(params["module"], params.get("buffers", {}), batch["x"], train=True)
        return self.criterion.loss(outputs, batch["y"]), buffers

    def predict(self, params: Tree, x: Tensor) -> Tensor:
        return self.criterion.report(self.module(params["module"], params.get("buffers", {}), x)[0])

    def losses(self, params: Tree, batch: Batch) -> Tensor:
        """Return ``(n,)`` losses of the model as it predicts."""
        return self.criterion.loss(self.module(params["module"], params.get("buffers", {}), batch["x"])[0], batch["y"])


def risk(task: Task, model: Tree, examples: Examples) -> Tensor:
    """Return the mean loss over all examples, shape ``()``, of a model as it predicts.

    Of a user's own task it is the mean training loss. In training mode BatchNorm would judge a model by the statistics
    of the pieces that the data happen to lie in.

    >>> from archipel.learning.quadratic import Quadratic
    >>> data = Examples.of({"x": torch.ones(2, 1, 1), "y": torch.tensor([[1.0], [3.0]])})
    >>> risk(Quadratic(), {"theta": torch.tensor([0.0])}, data)  # (½ + 9/2)/2
    tensor(2.5000)
    """

    def losses(batch: Batch) -> Tensor:
        return task.losses(model, batch) if isinstance(task, Supervised | Whole) else task.loss(model, batch)[0]

    return torch.where(examples.mask, examples.in_pieces(losses), 0).sum() / examples.count


class Described(Protocol):
    """What a task must know of a federation; a trained run has the same facts (:class:`archipel.runs.facts.Facts`)."""

    @property
    def inputs(self) -> Inputs:
        """How raw inputs are normalised."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names; ``None`` for regression."""

    @property
    def outputs(self) -> int:
        """K classes, or the number of targets of a regression."""


def classification(encoder: nn.Module, federation: Described, *, initial: Initial = "keyed") -> Supervised:
    """Make a classifier for a federation: the given encoder, and a linear head over its classes.

    Args:
        encoder: any module ``(n, *shape) → (n, features)``.
        federation: determines how inputs are normalised and how many classes there are.
        initial: ``"keyed"``: draw the encoder's weights from the run's key; ``"given"``: start from the weights it has.

    Returns:
        The task.

    Raises:
        ValueError: the federation's targets are not classes, or the encoder's output isn't ``(n, features)``.

    >>> import numpy as np
    >>> from archipel.data.federation import Federation
    >>> islands = Federation.from_arrays([(np.eye(4), ["a", "b", "a", "b"])])
    >>> classification(nn.Linear(4, 8), islands).outputs
    2
    """
    if federation.classes is None:
        raise ValueError(
            "The federation's targets are numbers, not classes: use archipel.regression for it. If they mean classes, "
            "give them to Federation.from_arrays as whole numbers or text, or name the classes with classes=[…]."
        )
    network = _network(encoder, federation.inputs, initial)
    return Supervised(network, network.features(), federation.outputs, CrossEntropy())


def regression(encoder: nn.Module, federation: Described, *, initial: Initial = "keyed") -> Supervised:
    """Make a least-squares regression for a federation: the given encoder, and a linear head with an output per target.

    Args:
        encoder: any module ``(n, *shape) → (n, features)``.
        federation: determines how inputs are normalised and how many targets there are.
        initial: as for :func:`classification`.

    Returns:
        The task.

    Raises:
        ValueError: the federation's targets are classes, or the encoder's output isn't ``(n, features)``.

    >>> import numpy as np
    >>> from archipel.data.federation import Federation
    >>> islands = Federation.from_arrays([(np.eye(4), np.linspace(0.0, 1.0, 4))])
    >>> regression(nn.Linear(4, 8), islands).outputs
    1
    """
    if federation.classes is not None:
        raise ValueError("The federation's targets are classes: use archipel.classification for it.")
    network = _network(encoder, federation.inputs, initial)
    return Supervised(network, network.features(), federation.outputs, SquaredError())


def _network(encoder: nn.Module, inputs: Inputs, initial: Initial) -> Network:
    if inputs.missing:
        warnings.warn(
            "The federation's examples have missing values (NaN), and of NaN a network makes NaN. Impute them before, "
            "unless the encoder replaces them.",
            UserWarning,
            stacklevel=3,
        )
    return Network(encoder, inputs, initial)
