"""The oracle: one model trained on all data, with the true client and component of each example known.

It sees the images as they are, and each label before its permutation, so the clients no longer contradict one another.
No method without this knowledge can be expected to do better with the same network.
"""

from __future__ import annotations

from archipel.data.client import Client
from archipel.data.dual_heterogeneity import oracle_view
from archipel.data.federation import Federation
from archipel.experiments.config import RunConfig
from archipel.experiments.data_sections import DividedData
from archipel.experiments.methods import SECTIONS, SolverSection


def pool(federation: Federation) -> Federation:
    """Return one client that holds all examples, with their labels before permutation.

    Raises:
        ValueError: the federation doesn't hold the truth about its data.

    >>> from archipel.data.sources.scikit import digits
    >>> from archipel.data.dual_heterogeneity import dual_heterogeneity
    >>> print(pool(dual_heterogeneity(digits())))
    digits, dual heterogeneity, pooled: 1 clients, 1258 training examples, 10 classes ...
    """
    train, test = ({"x": split["x"], "y": split["y"]} for split in oracle_view(federation))
    everyone = Client("everyone", train=train, test=test)
    return Federation(f"{federation.name}, pooled", (everyone,), federation.inputs, federation.classes)


def oracle_of(config: RunConfig, share: float = 1.0, lr: float | None = None) -> RunConfig:
    """Return the configuration of the oracle for a run: SGD on the pooled data, with the encoder and rounds of the run.

    Args:
        config: of a run under dual heterogeneity in which all clients take part in every round.
        share: the number of examples that the oracle sees, as a fraction of those that all clients see together. A
            model that is not averaged needs far fewer steps, and one model can't be trained by several threads.
        lr: its learning rate; ``None``: that of the run.

    Raises:
        ValueError: the truth about the data isn't known, or the run counts epochs instead of steps.
    """
    if not isinstance(config.data, DividedData):
        raise ValueError(f"an oracle needs the truth about the data, which {config.data.source!r} doesn't have.")
    if config.data.partition is not None:
        raise ValueError(f"an oracle can't be combined with the partition {config.data.partition.name}.")
    given: SolverSection | None = getattr(config.algorithm, "local", None)
    if given is None or given.build().steps is None:
        raise ValueError("an oracle's length is counted in steps: set algorithm.local.steps instead of epochs.")
    steps = max(1, round(share * config.data.clients * (given.build().steps or 1)))
    local = given.model_dump() | {"steps": steps} | ({} if lr is None else {"lr": lr})
    return config.model_copy(
        update={
            "name": f"{config.name}-oracle",
            "data": config.data.model_copy(update={"view": "oracle"}),
            "algorithm": SECTIONS["fedavg"].model_validate({"name": "fedavg", "local": local}),
        }
    )
