"""The oracle: one model trained on everybody's data by someone who knows client and component.

It sees the images as they are, but every label before its permutation, so that what keeps a federation apart is gone.
No method that learns without this knowledge can be expected to do better with the same network.
"""

from __future__ import annotations

from archipel.data.client import Client
from archipel.data.dual_heterogeneity import oracle_view
from archipel.data.federation import Federation
from archipel.experiments.config import RunConfig
from archipel.experiments.methods import SECTIONS, Local
from archipel.experiments.sections import Divided


def pool(federation: Federation) -> Federation:
    """One client that holds everybody's examples, with the labels before permutation.

    Raises:
        ValueError: the federation's truth isn't known.

    >>> from archipel.data.sources.scikit import digits
    >>> from archipel.data.dual_heterogeneity import dual_heterogeneity
    >>> print(pool(dual_heterogeneity(digits())))
    digits, dual heterogeneity, pooled: 1 clients, 1258 training examples, 10 classes ...
    """
    train, test = ({"x": split["x"], "y": split["y"]} for split in oracle_view(federation))
    everyone = Client("everyone", train=train, test=test)
    return Federation(f"{federation.name}, pooled", (everyone,), federation.inputs, federation.classes)


def oracle_of(config: RunConfig, share: float = 1.0, lr: float | None = None) -> RunConfig:
    """The oracle for a run: plain SGD on the pooled data, with the run's encoder and rounds.

    Args:
        config: of a run under dual heterogeneity that everybody takes part in.
        share: examples it sees, as a fraction of what all clients see in training together. A model that isn't
            averaged needs far fewer steps; only their number in a row counts, and it works on one thread.
        lr: its learning rate; ``None``: the run's.

    Raises:
        ValueError: the run's truth isn't known, or it counts epochs, of which an oracle of full share takes as many.
    """
    if not isinstance(config.data, Divided):
        raise ValueError(f"an oracle needs the truth about the data, which {config.data.source!r} doesn't hold.")
    if config.data.partition is not None:
        raise ValueError(f"an oracle is for dual heterogeneity, not for the partition {config.data.partition.name}.")
    given: Local | None = getattr(config.algorithm, "local", None)
    if given is None or given.steps is None:
        raise ValueError("an oracle's budget is counted in steps: give algorithm.local.steps instead of epochs.")
    steps = max(1, round(share * config.data.clients * given.steps))
    local = Local.model_validate(given.model_dump() | {"steps": steps, "lr": given.lr if lr is None else lr})
    return config.model_copy(
        update={
            "name": f"{config.name}-oracle",
            "data": config.data.model_copy(update={"view": "oracle"}),
            "algorithm": SECTIONS["fedavg"].model_validate({"name": "fedavg", "local": local}),
        }
    )
