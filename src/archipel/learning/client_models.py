"""What clients keep of models: own entries, own models, and momentum between rounds."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from archipel.core.examples import ClientData
from archipel.core.trees import Tree, zeros_like
from archipel.learning.sgd import SGD, Batch, Loss, Shift, Solution, trained


def at_rest(local: SGD, client: Tree, model: Tree, name: str = "velocity") -> Tree:
    """Return the client's state before the first run on a model: with the velocity 0, where the solver keeps it."""
    return remember(local, client, zeros_like(trained(model)), name)


def remember(local: SGD, client: Tree, velocity: Tree, name: str = "velocity") -> Tree:
    """Return the client's state with the velocity, for solvers that keep it between rounds."""
    return client | {name: velocity} if local.keep_momentum else client


def continued(
    local: SGD,
    loss: Loss,
    client: Tree,
    data: ClientData,
    key: Tensor,
    lr: Tensor,
    shift: Shift | None = None,
    name: str = "model",
) -> tuple[Tree, Solution]:
    """Train a model that the client keeps from where it is: the client's new state, and where the run ended.

    Args:
        local: the solver.
        loss: of an example.
        client: its state, with the model, and with the velocity where the solver keeps it.
        data: whose training examples are used.
        key: of the minibatches.
        lr: the round's rate.
        shift: what the method adds to the gradient.
        name: the model's entry in the client's state.
    """
    end = local.minimise(loss, client[name], data.train, key, lr, client.get("velocity"), shift)
    return remember(local, client | {name: end.params}, end.velocity), end


def beside(loss: Loss, fixed: Tree) -> Loss:
    """Return the loss as a function of the other parameters alone, with ``fixed`` held where they are."""

    def partial(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return loss(params | fixed, batch)

    return partial


def split(model: Tree, names: Sequence[str]) -> tuple[Tree, Tree]:
    """Return the other entries, buffers included, and the named ones."""
    others = {name: part for name, part in model.items() if name not in names}
    return others, {name: part for name, part in model.items() if name in names}


def parted(owner: str, model: Tree, names: Sequence[str]) -> tuple[Tree, Tree]:
    """Split a model into shared and own entries, after a check that there are some of both.

    Raises:
        ValueError: the names are not entries of the model's parameters, or are all of them.

    >>> import torch
    >>> body, head = parted("FedRep", {"encoder": torch.ones(2), "head": torch.zeros(1)}, ["head"])
    >>> list(body), list(head)
    (['encoder'], ['head'])
    """
    known = list(trained(model))
    if not 0 < len(set(names)) < len(known) or not set(names) <= set(known):
        raise ValueError(
            f"{owner} must keep some of the task's parameters, {', '.join(known)}, at the clients, and leave some to "
            f"share; given {', '.join(names) or 'none'}. FedAvg shares all, Local none."
        )
    return split(model, names)
