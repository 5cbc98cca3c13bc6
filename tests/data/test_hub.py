"""Data sets of the Hugging Face hub, by small stand-ins with their interface."""

import sys
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from archipel.data.sources.hub import from_hub


class HubDataset:
    """As `datasets.Dataset`, as far as it's used: columns, length, and slices of rows as dictionaries of lists."""

    def __init__(self, names=None, **columns):
        self.columns = columns
        self.column_names = list(columns)
        self.features = {"label": SimpleNamespace(names=names)} if names else {}
        self.info = SimpleNamespace(citation="Somebody (2020).", license="MIT")

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows):
        return {name: values[rows] for name, values in self.columns.items()}


class FederatedDataset:
    """As `flwr_datasets.FederatedDataset`: partitioners know their data after the first partition is loaded."""

    def __init__(self, parts, names=None):
        self.parts = parts
        self.partitioners = {"train": SimpleNamespace(partition_id_to_natural_id=names or {})}

    def load_partition(self, number, split):
        self.partitioners[split].num_partitions = len(self.parts)
        return self.parts[number]


def picture(value):
    return Image.new("RGB", (4, 5), (value, 0, 0))


def test_a_hub_data_set_with_a_client_column():
    dataset = HubDataset(
        image=[picture(value) for value in range(5)],
        label=[1, 0, 1, 1, 0],
        writer=["10", "9", "10", "9", "10"],
        names=["cat", "dog"],
    )
    source = from_hub(dataset, client="writer", name="pets")
    assert source.x.shape == (5, 3, 5, 4)
    assert source.x.dtype == torch.uint8
    assert source.client_names == ("9", "10")
    assert source.client.tolist() == [0, 0, 1, 1, 1]
    assert source.x[:, 0, 0, 0].tolist() == [1, 3, 0, 2, 4]
    assert source.y.tolist() == [0, 1, 1, 1, 0]
    assert source.classes == ("cat", "dog")
    assert (source.citation, source.licence) == ("Somebody (2020).", "MIT")


def test_partitions_of_a_federated_data_set_are_clients():
    parts = [HubDataset(a=[1.0, 2.0], b=[3, 4], label=["x", "y"]), HubDataset(a=[5.0], b=[6], label=["x"])]
    source = from_hub(FederatedDataset(parts))
    assert source.client_names == ("client-0", "client-1")
    assert source.client.tolist() == [0, 0, 1]
    assert source.features == ("a", "b")
    assert source.x.tolist() == [[1, 3], [2, 4], [5, 6]]
    assert from_hub(FederatedDataset(parts, {0: "Nice", 1: "Lyon"})).client_names == ("Nice", "Lyon")


def test_splits_and_columns_that_are_not_there_are_named():
    dataset = HubDataset(x=[[1.0], [2.0]], label=[0, 1], who=["a", "b"])
    with pytest.raises(ValueError, match="say by client=… which column holds the clients; there are x, label, who"):
        from_hub(dataset)
    with pytest.raises(ValueError, match="no column 'writer'; there are x, label, who"):
        from_hub(dataset, client="writer")
    with pytest.raises(ValueError, match="no split 'train'; it has test"):
        from_hub({"test": dataset}, client="who")
    with pytest.raises(ValueError, match="divides train, not the split 'test'"):
        from_hub(FederatedDataset([dataset]), split="test")
    ragged = HubDataset(x=[[1.0], [2.0, 3.0]], label=[0, 1], who=["a", "b"])
    with pytest.raises(ValueError, match="column 'x' holds values of different shapes"):
        from_hub(ragged, client="who")
    named = HubDataset(x=[[1.0], [2.0]], label=[b"sick", b"well"], who=[b"Nice", b"Lyon"])
    assert from_hub(named, client="who").client_names == ("Lyon", "Nice")
    assert from_hub(named, client="who").classes == ("sick", "well")
    assert from_hub({"train": dataset}, client="who").x.tolist() == [[1], [2]]


def test_a_hub_name_without_the_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"loading 'mnist' needs datasets: pip install archipel\[hub\]"):
        from_hub("mnist", client="who")
