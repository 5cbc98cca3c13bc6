"""What methods reveal, as their own messages show it."""

import re
from pathlib import Path

import pytest
import torch
from reveals_page import page
from table import ROWS

from archipel import SGD, Algorithm, FedAvg, Federation, classification
from archipel.trust import reveals
from archipel.trust.reveals import told
from random_tables import random_tables


@pytest.fixture(scope="module")
def found():
    """What every conformance row reveals."""
    uneven = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
    return {name: reveals(row.make(uneven), uneven, groups=row.groups) for name, row in ROWS.items()}


def test_pooled_alone_sends_its_examples(found):
    """Doubling every site's examples leaves all message shapes unchanged, for every other method."""
    assert {name for name, rows in found.items() if any(row.per_example for row in rows)} == {"Pooled"}
    assert {row.leaf for row in found["Pooled"]} == {"x", "y"}


def test_known_statistics_are_found(found):
    def entries(name, seen):
        return {row.leaf.split("/")[0] for row in found[name] if row.seen == seen}

    assert {"weight", "sum", "square"} <= entries("FedGMM", "sum")  # moments of embeddings
    assert "experts" in entries("FedCR", "sum")  # statistics of each class
    assert "model" in entries("FPFC", "each")  # single models
    totals = [row for row in found["FedSPM 1×"] if row.step == "FedSPM.expect"]
    assert [(row.seen, row.numbers) for row in totals] == [("each", 2)]  # τ_i, a number for each of two components
    assert entries("Local", "sum") == {"loss"}
    assert {row.seen for row in found["FedEM"]} == {"sum"}
    assert {row.when for row in found["FedAvg"]} == {"rounds"}


def test_numbers_are_those_of_the_model(found):
    uneven = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
    task = classification(torch.nn.Linear(3, 4), uneven)
    rows = reveals(FedAvg(task, SGD(lr=0.1, steps=1)), uneven)
    assert sum(row.numbers for row in rows if row.leaf != "loss") == (3 * 4 + 4) + (4 * 3 + 3)


def test_the_users_examples_are_not_looked_at():
    x = torch.full((20, 3), torch.nan)
    islands = Federation.from_arrays(random_tables((20, 20)))
    for client in islands.clients:
        client.train["x"].copy_(x[: len(client.train["x"])])
    task = classification(torch.nn.Linear(3, 4), islands)
    assert reveals(FedAvg(task, SGD(lr=0.1, steps=1)), islands)


def test_a_method_that_cannot_run_on_random_examples_is_said_to_be_unknown():
    class Picky(Algorithm):
        def init_server(self, clients, key):
            raise ValueError("too few examples\nof any kind")

        def round(self, server, clients, key):
            raise NotImplementedError

    islands = Federation.from_arrays(random_tables((20, 20)))
    assert told(Picky(), islands) == ["not known: the method doesn't run on the substitute (too few examples)"]


def test_the_page_is_up_to_date(found):
    """`python tests/trust/reveals_page.py` writes it anew."""
    written = (Path(__file__).parents[2] / "docs" / "reveals.md").read_text()
    assert written == page(found)
    assert re.search(r"\| Pooled \|.*every example", written)
