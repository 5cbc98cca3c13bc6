"""The parts of a configuration that all methods share: data, cohort, encoders."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from archipel.compress.compressor import Compressor
from archipel.compress.registry import COMPRESSORS
from archipel.core.sampling import Cohort, Full, Sample
from archipel.data.arrays import Kind
from archipel.data.partitions.by_name import check_partition
from archipel.data.shifts.compose import make_shift
from archipel.data.shifts.shift import Shift
from archipel.learning.tasks import Described
from archipel.models.registry import build as build_encoder
from archipel.models.registry import check_options

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
EncoderName = Literal["mlp", "lenet", "resnet8", "resnet20", "resnet18"]


class Section(BaseModel):
    """A part of a configuration: unknown keys are errors, and ``"3"`` or ``true`` is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PartitionSection(Section):
    """Who gets which examples: :func:`archipel.data.partition`.

    Args:
        name: which partition; all other keys are its options, as in ``{name: pathological, classes: 2}``.
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


class CompressorSection(Section):
    """How what clients send is compressed: :mod:`archipel.compress`.

    Args:
        name: which compressor, its class's in lower case; all other keys are its fields, as in ``{name: dithering,
            levels: 4}``.
    """

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self

    def build(self) -> Compressor:
        known = {name.lower(): kind for name, kind in COMPRESSORS.items()}
        if self.name not in known:
            raise ValueError(f"There is no compressor {self.name!r}; there are {', '.join(known)}.")
        given = self.model_extra or {}
        try:
            return known[self.name](**given)
        except TypeError as error:  # a field that it hasn't got, or lacks
            has = ", ".join(inspect.signature(known[self.name]).parameters) or "none"
            raise ValueError(f"{self.name}'s settings are {has}; given {', '.join(given) or 'none'}.") from error


class ShiftSection(Section):
    """What is changed, and where: :func:`archipel.data.shifts.compose`.

    Args:
        name: which shift; all other keys are its options, as in ``{name: rotated, degrees: 45}``.
        clients: the numbers of the clients it happens to, from 0; ``None``: all of them.
        component: the latent component it happens to, from 0; ``None``: whole clients.
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


TABLES = ("breast-cancer", "wine", "iris", "diabetes")


class Divided(Section):
    """A public data set that is divided over clients.

    By default under dual heterogeneity, :func:`archipel.data.dual_heterogeneity`; with a partition, by
    :func:`archipel.data.divide`, and clients differ in what the partition and the shifts say, and in nothing else.

    Args:
        source: a data set's name; tables need a partition.
        data_dir: a folder that holds its files, where they aren't in the usual places.
        clients: m.
        partition: who gets which examples; ``None``: dual heterogeneity.
        shifts: what is changed then, in this order, those of components before those of whole clients.
        components: C latent components in each client; with a partition, only if a shift names one.
        alpha_inter: Dirichlet parameter of class proportions over clients; not with a partition.
        alpha_intra: Dirichlet parameter of component weights within a client.
        test: fraction of each client's examples for testing.
        validation: fraction for validation.
        size: pixels a side; ``None``: the source's own, or 16 where that's smaller.
        superclasses: learn the superclasses, of which CIFAR-100 has 20, instead of the classes.
        seed: of the division; ``None``: the run's.
        view: ``"federation"``, or ``"oracle"``: one client with everybody's examples, labels un-permuted.
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
    seed: Annotated[int, Field(ge=0)] | None = None
    view: Literal["federation", "oracle"] = "federation"

    @property
    def within(self) -> bool:
        """Whether a shift is of a latent component."""
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
            raise ValueError(f"an oracle is for dual heterogeneity, not for the partition {partition.name}.")
        if partition.name == "natural":
            raise ValueError(f"{self.source} has no clients of its own; data.source=femnist, for one, has.")
        if partition.name == "pachinko" and self.source != "cifar100":
            raise ValueError(f"pachinko needs superclasses, which {self.source} doesn't have; cifar100 does.")
        if partition.name == "pachinko" and self.superclasses:
            raise ValueError("pachinko draws classes within superclasses; leave out superclasses, which joins them.")
        if self.source == "diabetes" and partition.name not in ("iid", "quantity"):
            raise ValueError(f"diabetes is a regression, without classes for {partition.name}; take iid or quantity.")


class Arrays(Section):
    """Your own data: a folder with one ``.npz`` a client, named as the client, that holds ``x`` and ``y``.

    Args:
        source: ``"arrays"``.
        data_dir: the folder.
        kind: ``"image"``, ``"table"``, ``"series"``, or ``"auto"``: told from the shapes.
        classes: the classes' names in the order of their codes; ``None``: found in the data.
        test: fraction of each client's examples for testing.
        validation: fraction for validation.
        seed: of the split; ``None``: the run's.
    """

    source: Literal["arrays"]
    data_dir: str
    kind: Kind | Literal["auto"] = "auto"
    classes: list[str] | None = None
    test: Fraction = 0.3
    validation: Fraction = 0.0
    seed: Annotated[int, Field(ge=0)] | None = None


class Natural(Section):
    """A public data set with clients of its own: :func:`archipel.data.natural`.

    Args:
        source: FEMNIST by writer, heart disease by hospital, HAPT by person, Fed-ISIC2019 by centre.
        data_dir: a folder that holds its files; ``None``: $ARCHIPEL_DATA.
        options: what its loader takes besides, as ``{missing: impute-median}`` for heart disease.
        test: fraction of each client's examples for testing; ``None``: the publisher's test examples, else 0.3.
        validation: fraction for validation.
        limit: take the first clients only.
        minimum: leave out clients with fewer examples.
        seed: of the split; ``None``: the run's.
    """

    source: Literal["femnist", "heart-disease", "hapt", "fed-isic2019"]
    data_dir: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    test: Fraction | None = None
    validation: Fraction = 0.0
    limit: Positive | None = None
    minimum: Positive = 1
    seed: Annotated[int, Field(ge=0)] | None = None


class CohortSection(Section):
    """Who takes part in a round: everybody, or a sample; :class:`archipel.Sample`."""

    fraction: float | None = None
    count: int | None = None
    weighted: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weighted and self.fraction is None and self.count is None:
            raise ValueError("weighted needs a fraction or a count of clients to draw.")
        self.build()
        return self

    def build(self) -> Cohort:
        everybody = self.fraction is None and self.count is None
        return Full() if everybody else Sample(self.fraction, self.count, self.weighted)


class EncoderSection(Section):
    """A network from inputs to features: :func:`archipel.models.build`.

    Args:
        name: which one.
        features: width of its output.
        options: what else it takes, as ``{channels: [8, 16]}`` for a LeNet.
    """

    name: EncoderName = "lenet"
    features: Positive = 32
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_options(self.name, self.options)
        return self

    def build(self, facts: Described) -> nn.Module:
        try:
            return build_encoder(self.name, facts.inputs.shape, self.features, **self.options)
        except TypeError as error:
            raise ValueError(f"{self.name} can't be built with the options {self.options}: {error}.") from error


class RouterSection(EncoderSection):
    """The router's encoder, half as wide by default: telling looks apart is easier than telling labels."""

    @model_validator(mode="before")
    @classmethod
    def _light(cls, given: Any) -> Any:
        lenet = isinstance(given, dict) and given.get("name", "lenet") == "lenet"
        return {"options": {"channels": [8, 16]}} | given if lenet else given
