"""The ``data`` section of a configuration: public data divided over clients, natural clients, or your own files."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from archipel.data.partitions.by_name import check_partition
from archipel.data.shifts.compose import make_shift
from archipel.data.shifts.shift import Shift
from archipel.experiments.sections import Fraction, Positive, Section, Seed
from archipel_serve.preparation import Kind

TABLES = ("breast-cancer", "wine", "iris", "diabetes")


class PartitionSection(Section):
    """How the examples are divided over the clients: :func:`archipel.data.make_partition`.

    Args:
        name: of the partition; all other keys are its options, as in ``{name: pathological, classes: 2}``.
    """

    model_config = ConfigDict(extra="allow")

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return self.model_extra or {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_partition(self.name, self.options)
        return self


class ShiftSection(Section):
    """A change of the data of some clients: :func:`archipel.data.shifts.compose`.

    Args:
        name: of the shift; all other keys are its options, as in ``{name: rotated, degrees: 45}``.
        clients: the numbers of the clients whose data change, from 0; ``None``: all clients.
        component: the latent component whose examples change, from 0; ``None``: all examples of the clients.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    clients: list[Annotated[int, Field(ge=0)]] | None = None
    component: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self

    def build(self) -> Shift:
        options = self.model_extra or {}
        try:
            return make_shift(self.name, **options)
        except TypeError as error:
            raise ValueError(f"shift {self.name} can't be made with the options {options}: {error}.") from error


class DividedData(Section):
    """A public data set that is divided over clients.

    By default the clients differ by dual heterogeneity: :func:`archipel.data.dual_heterogeneity`. With a partition,
    :func:`archipel.data.divide` makes them, and they differ only by the partition and the shifts.

    Args:
        source: a data set's name; tables need a partition.
        data_dir: the folder that holds its files; ``None``: $ARCHIPEL_DATA.
        clients: the number m of clients.
        partition: how the examples are divided; ``None``: dual heterogeneity.
        shifts: changes of the divided data, in this order; those of components come before those of whole clients.
        components: the number C of latent components of each client; with a partition, only if a shift names one.
        alpha_inter: Dirichlet parameter of class proportions over clients; not with a partition.
        alpha_intra: Dirichlet parameter of component weights within a client.
        test: fraction of each client's examples for testing.
        validation: fraction of each client's examples for validation.
        size: pixels a side; ``None``: the source's own, at least 16.
        superclasses: learn the 20 superclasses of CIFAR-100 instead of its classes.
        seed: of the division; ``None``: the run's.
        view: ``"federation"``, or ``"oracle"``: one client with all examples, their labels before permutation.
    """

    source: Literal["fashion-mnist", "digits", "cifar10", "cifar100", "breast-cancer", "wine", "iris", "diabetes"]
    data_dir: str | None = None
    clients: Positive = 8
    partition: PartitionSection | None = None
    shifts: list[ShiftSection] = Field(default_factory=list)
    components: Positive = 2
    alpha_inter: Annotated[float, Field(gt=0)] = 1.0
    alpha_intra: Annotated[float, Field(gt=0)] = 2.0
    test: Fraction = 0.3
    validation: Fraction = 0.0
    size: Positive | None = None
    superclasses: bool = False
    seed: Seed | None = None
    view: Literal["federation", "oracle"] = "federation"

    @property
    def within(self) -> bool:
        """Whether a shift changes a latent component."""
        return any(shift.component is not None for shift in self.shifts)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.source in TABLES:
            self._check_table()
        if self.superclasses and self.source != "cifar100":
            raise ValueError(f"{self.source} has no superclasses; cifar100 does.")
        if self.partition is not None:
            self._check_partition(self.partition)
        for shift in self.shifts:
            if beyond := [i for i in shift.clients or [] if i >= self.clients]:
                raise ValueError(f"shift {shift.name} names client {beyond[0]}; they are 0 to {self.clients - 1}.")
            if shift.component is not None and shift.component >= self.components:
                raise ValueError(
                    f"shift {shift.name} names component {shift.component}; they are 0 to {self.components - 1}."
                )
        return self

    def _check_table(self) -> None:
        if self.partition is None:
            raise ValueError(
                f"{self.source} is a table, and dual heterogeneity transforms images. Set data.partition, such as "
                "{name: iid}."
            )
        if self.size is not None:
            raise ValueError(f"size is {self.size}; {self.source} is a table, which has no pixels.")

    def _check_partition(self, partition: PartitionSection) -> None:
        for name in ("alpha_inter",) if self.within else ("alpha_inter", "alpha_intra", "components"):
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is {value}, a setting of dual heterogeneity; with the partition {partition.name}, "
                    + ("leave it out." if name == "alpha_inter" else "it needs a shift that names a component.")
                )
        if self.view == "oracle":
            raise ValueError(f"view=oracle can't be combined with the partition {partition.name}; leave one out.")
        if partition.name == "natural":
            raise ValueError(f"{self.source} has no clients of its own; data.source=femnist has.")
        if partition.name == "pachinko" and self.source != "cifar100":
            raise ValueError(f"pachinko needs superclasses, which {self.source} doesn't have; cifar100 does.")
        if partition.name == "pachinko" and self.superclasses:
            raise ValueError("superclasses=true can't be combined with pachinko, which draws classes within them.")
        if self.source == "diabetes" and partition.name not in ("iid", "quantity"):
            raise ValueError(f"diabetes is a regression, without classes for {partition.name}; use iid or quantity.")


class OwnData(Section):
    """Your own data: a folder with a file for each client, named as the client.

    Files are ``.npz`` with ``x`` and ``y``, or tables (``.csv``, ``.tsv``, ``.parquet``) with a column ``y``.

    Args:
        source: ``"arrays"``.
        data_dir: the folder.
        kind: ``"image"``, ``"table"``, ``"series"``, or ``"auto"``: decided by the shapes.
        classes: the classes' names in the order of their codes; ``None``: found in the data.
        test: fraction of each client's examples for testing.
        validation: fraction of each client's examples for validation.
        seed: of the split; ``None``: the run's.
    """

    source: Literal["arrays"]
    data_dir: str
    kind: Kind | Literal["auto"] = "auto"
    classes: list[str] | None = None
    test: Fraction = 0.3
    validation: Fraction = 0.0
    seed: Seed | None = None


class NaturalData(Section):
    """A public data set with clients of its own: :func:`archipel.data.natural`.

    Args:
        source: the data set: FEMNIST has a client for each writer, heart disease for each hospital, HAPT for each
            person, Fed-ISIC2019 for each centre.
        data_dir: the folder that holds its files; ``None``: $ARCHIPEL_DATA.
        options: further arguments of its loader, as in ``{missing: impute-median}`` for heart disease.
        test: fraction of each client's examples for testing; ``None``: the publisher's test examples, else 0.3.
        validation: fraction of each client's examples for validation.
        limit: keep only this number of clients, the first ones; ``None``: all.
        minimum: leave out clients that have fewer examples.
        seed: of the split; ``None``: the run's.
    """

    source: Literal["femnist", "heart-disease", "hapt", "fed-isic2019"]
    data_dir: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    test: Fraction | None = None
    validation: Fraction = 0.0
    limit: Positive | None = None
    minimum: Positive = 1
    seed: Seed | None = None
