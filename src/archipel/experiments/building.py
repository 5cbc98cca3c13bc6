"""Federations and algorithms built from configurations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from archipel.algorithm import Algorithm
from archipel.data.divide import divide, latent_components
from archipel.data.dual_heterogeneity import dual_heterogeneity, sized
from archipel.data.federation import Federation
from archipel.data.files.clients import client_files_in, read_examples
from archipel.data.natural import natural
from archipel.data.partitions.by_name import make_partition
from archipel.data.shifts.compose import compose
from archipel.data.shifts.shift import Shift
from archipel.data.sources.catalogue import load_source
from archipel.data.sources.source import Source
from archipel.experiments.config import RunConfig, algorithm_from
from archipel.experiments.data_sections import DividedData, NaturalData, OwnData, PartitionSection
from archipel.experiments.oracle import pool


def build(config: RunConfig) -> tuple[Algorithm, Federation]:
    """Build the algorithm and the federation of a run.

    Raises:
        ValueError: the settings don't fit each other or the data.
        FileNotFoundError: the data are missing.
    """
    federation = federation_from(config)
    return algorithm_from(config, federation), federation


def federation_from(config: RunConfig) -> Federation:
    """Build the federation of a run."""
    data = config.data
    seed = config.seed if data.seed is None else data.seed
    if isinstance(data, OwnData):
        return _from_folder(data, seed)
    if isinstance(data, NaturalData):
        return natural(
            partial(load_source, data.source, data.data_dir, **data.options),
            test=data.test,
            validation=data.validation,
            seed=seed,
            limit=data.limit,
            minimum=data.minimum,
        )
    source = load_source(data.source, data.data_dir)
    if data.superclasses:
        source = source.by_superclass()
    if data.partition is not None:
        made = _by_partition(source, data, data.partition, seed)
    else:
        made = dual_heterogeneity(
            source,
            clients=data.clients,
            components=data.components,
            alpha_inter=data.alpha_inter,
            alpha_intra=data.alpha_intra,
            test=data.test,
            validation=data.validation,
            size=data.size,
            seed=seed,
        )
    made = _shifted(made, data, seed)
    return pool(made) if data.view == "oracle" else made


def _by_partition(source: Source, data: DividedData, chosen: PartitionSection, seed: int) -> Federation:
    least = 1 + (data.test > 0) + (data.validation > 0)
    coarse = None if source.superclass is None else source.superclass[source.y].numpy()
    options = {"minimum": least} | chosen.options
    try:
        parts = make_partition(chosen.name, source.y.numpy(), data.clients, seed, coarse=coarse, **options)
    except TypeError as error:
        raise ValueError(
            f"partition {chosen.name} can't be made with the options {chosen.options}: {error}."
        ) from error
    if source.kind == "image":
        source = replace(source, x=sized(source, data.size))
    name = f"{source.name}, {chosen.name}"
    made = divide(source, parts, test=data.test, validation=data.validation, seed=seed, name=name)
    return latent_components(made, data.components, data.alpha_intra, seed=seed) if data.within else made


def _shifted(federation: Federation, data: DividedData, seed: int) -> Federation:
    if not data.shifts:
        return federation

    def of(client: int, component: int | None) -> list[Shift]:
        return [
            shift.build()
            for shift in data.shifts
            if shift.component == component and (shift.clients is None or client in shift.clients)
        ]

    m = range(data.clients)
    inner = [[of(i, c) for c in range(data.components)] for i in m] if data.within else None
    return compose(federation, components=inner, clients=[of(i, None) for i in m], seed=seed)


def _from_folder(data: OwnData, seed: int) -> Federation:
    folder = Path(data.data_dir)
    files = client_files_in(folder)
    read = [read_examples(file, "y") for file in files.values()]
    return Federation.from_arrays(
        [(examples.x, examples.y) for examples in read if examples.y is not None],
        test=data.test,
        validation=data.validation,
        seed=seed,
        names=list(files),
        classes=data.classes,
        kind=data.kind,
        name=folder.resolve().name,
        features=[examples.features for examples in read],
    )
