"""The clients' examples, the same for all contenders: consecutive rows of two files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read(work: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all rows: images ``(n, channels, height, width)``, normalised float32 or bytes, and classes."""
    folder = Path(work["data"])
    x = np.load(folder / ("x.npy" if work["stored"] == "floats" else "pixels.npy"))
    y = np.load(folder / "y.npy")
    size = work["examples"]
    whole = len(x) // size * size  # so that every client's rows are consecutive
    return x[:whole], y[:whole]


def places(work: Mapping[str, Any], rows: int) -> list[slice]:
    """Return the rows of each client; if there are too few rows for all clients, rows are used again."""
    size = work["examples"]
    starts = [client * size % rows for client in range(work["clients"])]
    return [slice(start, start + size) for start in starts]
