"""The timed work: how many clients make which local steps, and on what data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from archipel.data.sources.idx import fashion_mnist

Method = Literal["fedavg", "ditto", "pfedme", "fpfc", "fedspm-exact", "fedspm-incremental", "router"]
IMAGES = 60_000


@dataclass(frozen=True)
class Work:
    """A round's work, the same for every contender.

    Args:
        clients: size of the population.
        cohort: number of clients in a round, drawn at random.
        examples: of each client.
        batch: examples a local step; an epoch is a pass over a new order of the client's examples.
        epochs: of local SGD.
        network: ``"linear"``, ``"mlp"`` or ``"cnn"`` (:mod:`speed.peers.networks`).
        hidden: units of the ``"mlp"``.
        shape: of an example.
        lr: the local rate.
        momentum: of the local steps, which starts at 0 in each round.
        method: the algorithm; floors and other simulators do ``"fedavg"``, floors also ``"ditto"`` and ``"pfedme"``.
        steps: local steps, instead of epochs, with the encoders of the FedSPM experiments: where the method is
            ``"fedspm-…"``, or FedAvg of its encoder or its ``"router"``.
        classes: of the labels.
        stored: whether clients hold normalised floats, or bytes that are normalised in the batch.
        data: the folder that :func:`prepare` made.
    """

    clients: int
    cohort: int
    examples: int
    batch: int
    epochs: int = 1
    network: Literal["linear", "mlp", "cnn"] = "linear"
    hidden: int = 0
    shape: tuple[int, int, int] = (1, 28, 28)
    lr: float = 0.05
    momentum: float = 0.0
    method: Method = "fedavg"
    steps: int = 0
    classes: int = 10
    stored: Literal["floats", "bytes"] = "floats"
    data: str = ""

    @property
    def local_steps(self) -> int:
        """Number of steps that a client makes in a round.

        >>> Work(clients=1000, cohort=100, examples=60, batch=20).local_steps
        3
        """
        return self.steps or self.epochs * -(-self.examples // self.batch)

    @property
    def plain(self) -> dict[str, Any]:
        """The work in JSON's types."""
        return asdict(self) | {"shape": list(self.shape)}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Work:
        """Return the work that ``plain`` describes."""
        return cls(**plain | {"shape": tuple(plain["shape"])})


def prepare(work: Work, folder: Path, data_dir: Path | None = None, rows: int = IMAGES) -> Work:
    """Write the examples that all contenders read: Fashion-MNIST if it is found, otherwise noise of the same shape.

    ``x.npy`` holds float32 values of mean 0 and variance 1, or ``pixels.npy`` bytes; ``y.npy`` classes. Smaller shapes
    are made by leaving out rows and columns of pixels, more channels by repeating the one.

    Args:
        work: whose data.
        folder: to write to; existing files are kept.
        data_dir: folder of Fashion-MNIST, if it is not in a usual place.
        rows: largest number of examples.

    Returns:
        The work with its data.
    """
    channels, height, width = work.shape
    place = folder / f"{work.stored}-{channels}x{height}x{width}"
    if not (place / "y.npy").exists():
        place.mkdir(parents=True, exist_ok=True)
        pixels, y = _images(data_dir)
        pixels = pixels[:rows, :: 28 // height, :: 28 // width][:, None, :height, :width]
        pixels = np.repeat(pixels, channels, axis=1)
        if work.stored == "bytes":
            np.save(place / "pixels.npy", pixels)
        else:
            x = pixels.astype(np.float32)
            np.save(place / "x.npy", (x - x.mean()) / x.std())
        np.save(place / "y.npy", y[:rows].astype(np.int64))
    return replace(work, data=str(place))


def found(data_dir: Path | None = None) -> str:
    """Name the data in words."""
    try:
        fashion_mnist(data_dir, verify=False)
    except FileNotFoundError:
        return "noise in the shape of Fashion-MNIST, which isn't found"
    return "Fashion-MNIST"


def _images(data_dir: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        source = fashion_mnist(data_dir, verify=False)
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (IMAGES, 28, 28), dtype=np.uint8), rng.integers(0, 10, IMAGES)
    return source.x.numpy(), source.y.numpy()
