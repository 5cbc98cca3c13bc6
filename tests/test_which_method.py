"""docs/which-method.md: its columns of bytes are what the ledger counts."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from archipel import Federation, fit
from archipel.core.trees import nbytes
from archipel.engines.setting import Setting
from archipel.experiments.methods import SECTIONS
from archipel.learning.tasks import classification
from archipel.papers.consensus.entrants import ENTRANTS, STEPS
from archipel.reports.method_table import replaced

PAGE = (Path(__file__).parents[1] / "docs" / "which-method.md").read_text()
CLIENTS, EXAMPLES = 5, 8


@pytest.fixture(scope="module")
def islands():
    """Five clients with examples of 22 features and ten classes."""
    generator = torch.Generator().manual_seed(0)
    arrays = [(torch.randn(EXAMPLES, 22, generator=generator), torch.arange(EXAMPLES) + k) for k in range(CLIENTS)]
    arrays = [(x, y % 10) for x, y in arrays]
    return Federation.from_arrays(arrays, test=0.0, classes=[str(k) for k in range(10)])


def rows():
    """Up, down and kept bytes by method, of the table with these heads."""
    table = re.search(r"\| Method \| Up \| Down \| Kept \|.*?\n\n", PAGE + "\n\n", re.DOTALL).group()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {name: [int(number.replace(",", "")) for number in numbers[:3]] for name, *numbers in cells}


def test_the_table_of_all_methods_is_made_from_their_classes():
    assert replaced(PAGE) == PAGE, "python -m archipel.reports.method_table docs/which-method.md writes it anew"


def test_every_method_of_the_benchmark_has_a_row_and_a_section_of_its_own():
    named = {entrant.title for entrant in ENTRANTS.values() if entrant.title != "FedAvgFT"}
    assert set(rows()) == named
    assert {title for title in named if f"\n| {title} | " in PAGE.split("| Method | Up |")[0]} == named


@pytest.mark.parametrize("name", [name for name in ENTRANTS if name != "fedavgft"])
def test_bytes_are_those_of_the_ledger(name, islands):
    entrant = ENTRANTS[name]
    section = entrant.section(0.1, entrant.penalties[0] if entrant.penalties else None, CLIENTS)
    task = classification(nn.Sequential(nn.Linear(22, 30), nn.Tanh()), islands)
    algorithm = SECTIONS[name].model_validate(section).build(task, islands)
    assert nbytes(task.init(torch.tensor(0))) == 4000
    run = fit(algorithm, islands, rounds=3, setting=Setting(engine="loop"), until=2)
    record = run.history[1]  # the first round may begin with more
    found = [record["uplink"] / CLIENTS, record["downlink"] / CLIENTS, nbytes(run.clients[0])]
    assert found == rows()[entrant.title]


def test_pooling_costs_the_examples(islands):
    task = classification(nn.Linear(22, 30), islands)
    run = fit(SECTIONS["pooled"].model_validate({"name": "pooled"}).build(task, islands), islands, rounds=1)
    each = run.history[0]["uplink"] / (CLIENTS * EXAMPLES)
    assert f"{each:.0f} bytes an example" in PAGE
    assert f"{STEPS} local steps" in PAGE
