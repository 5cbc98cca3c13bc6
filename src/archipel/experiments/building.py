"""The objects that a configuration describes."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from archipel.algorithm import Algorithm
from archipel.data import Federation, dual_heterogeneity, load_source, natural
from archipel.experiments.config import RunConfig, algorithm_from
from archipel.experiments.oracle import pool
from archipel.experiments.sections import Arrays, Natural


def build(config: RunConfig) -> tuple[Algorithm, Federation]:
    """A run's algorithm and federation.

    Raises:
        ValueError: settings that don't fit together or the data.
        FileNotFoundError: data that aren't there.
    """
    federation = federation_from(config)
    return algorithm_from(config, federation), federation


def federation_from(config: RunConfig) -> Federation:
    """A run's federation alone."""
    data = config.data
    seed = config.seed if data.seed is None else data.seed
    if isinstance(data, Arrays):
        return _from_folder(data, seed)
    if isinstance(data, Natural):
        return natural(
            partial(load_source, data.source, data.data_dir, **data.options),
            test=data.test,
            validation=data.validation,
            seed=seed,
            limit=data.limit,
            minimum=data.minimum,
        )
    made = dual_heterogeneity(
        load_source(data.source, data.data_dir),
        clients=data.clients,
        components=data.components,
        alpha_inter=data.alpha_inter,
        alpha_intra=data.alpha_intra,
        test=data.test,
        validation=data.validation,
        size=data.size,
        seed=seed,
    )
    return pool(made) if data.view == "oracle" else made


def _from_folder(data: Arrays, seed: int) -> Federation:
    folder = Path(data.data_dir)
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise FileNotFoundError(
            f"data.data_dir is {folder}, where there are no .npz files. Give a folder with one a client, made by "
            "numpy.savez('CLIENT.npz', x=…, y=…)."
        )
    return Federation.from_arrays(
        [_pair(file) for file in files],
        test=data.test,
        validation=data.validation,
        seed=seed,
        names=[file.stem for file in files],
        classes=data.classes,
        kind=data.kind,
        name=folder.resolve().name,
    )


def _pair(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in ("x", "y") if name not in arrays]
            if missing:
                raise ValueError(f"it has no array {' and no '.join(missing)}, but {', '.join(arrays) or 'nothing'}")
            return arrays["x"], arrays["y"]
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{file} can't be used: {error}. Make it by numpy.savez(file, x=…, y=…) with arrays of numbers, "
            "or text for y."
        ) from error
