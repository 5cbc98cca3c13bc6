"""Cards: numbers worked out by hand, and a form for terminals, text files and Markdown."""

import io
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from archipel import Federation
from archipel.data.card import card, entropy, feature_distances, label_shares
from archipel.data.client import Client
from archipel.data.dual_heterogeneity import dual_heterogeneity
from archipel.data.inputs import Inputs
from archipel.data.shifts.compose import compose
from archipel.data.shifts.feature_shifts import Missing
from archipel.data.shifts.label_shifts import NoisyLabels
from archipel.data.sources.scikit import digits
from archipel.learning.quadratic import quadratic_federation


def by_hand(classes=4):
    """Two clients with labels (0, 0, 1, 1) and (1, 1, 1, 2)."""
    x = torch.arange(8.0).view(8, 1)
    y = torch.tensor([0, 0, 1, 1, 1, 1, 1, 2])
    clients = tuple(
        Client(name, {"x": x[rows], "y": y[rows]}, {"x": x[:1], "y": y[:1]})
        for name, rows in (("[a]|b", slice(0, 4)), ("B", slice(4, 8)))
    )
    return Federation("hand", clients, Inputs("table", (1,), 1.0, (0.0,), (1.0,)), tuple("wxyz"[:classes]))


def gaussians(gap, n=500, d=40, m=2):
    generator = torch.Generator().manual_seed(0)
    arrays = [(torch.randn(n, d, generator=generator) * 3 + i * gap * 3, torch.arange(n) % 2) for i in range(m)]
    return Federation.from_arrays(arrays, test=0.0)


def test_labels_by_hand():
    made = card(by_hand())
    assert made.columns == ("client", "train", "test", "classes", "entropy")
    # H(1/2, 1/2) = 1 bit; H(3/4, 1/4) = 2 − 0.75 log₂ 3 = 0.811 bits.
    assert made.rows == (("[a]|b", "4", "1", "2", "1.00"), ("B", "4", "1", "2", "0.81"))
    # |1/2 − 0| + |1/2 − 3/4| + |0 − 1/4|, halved.
    assert made.label_distances.tolist() == [[0, 0.5], [0.5, 0]]
    assert any("No client trains on z." in note for note in made.notes)
    assert entropy(torch.tensor([0.75, 0.25])).item() == pytest.approx(2 - 0.75 * math.log2(3), abs=1e-6)


@pytest.mark.parametrize("gap", [0.0, 0.5, 2.0])
def test_feature_distance_is_the_distance_of_means_in_standard_deviations(gap):
    # d² has mean gap², and sd √((4 gap² v + 2 v²)/features) with v = 2/n the variance of a difference of means.
    v, features = 2 / 500, 40
    found = feature_distances(gaussians(gap))[0, 1].item() ** 2
    assert found == pytest.approx(gap**2, abs=5 * math.sqrt((4 * gap**2 * v + 2 * v**2) / features))


def test_features_that_do_not_vary_do_not_count_and_holes_neither():
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    x[:, 2] = 7
    pair = Federation.from_arrays(
        [(x, torch.arange(400) % 2), (x + torch.tensor([2.0, 2.0, 0.0]), torch.arange(400) % 2)]
    )
    whole = feature_distances(pair)[0, 1].item()
    assert whole == pytest.approx(2.0, abs=0.25)  # a difference of two means of 280, in sd 1: sd 0.06, four of them
    holes = compose(pair, clients=[[Missing(0.2)]] * 2)
    assert feature_distances(holes)[0, 1].item() == pytest.approx(whole, abs=0.25)
    same = Federation.from_arrays([(np.ones((4, 2)), [0, 1] * 2)] * 2)
    assert not feature_distances(same).any()


def test_labels_are_those_before_permutation_and_noise():
    made = dual_heterogeneity(digits(), clients=3)
    noisy = compose(made, clients=[[NoisyLabels(0.9, 10)]] * 3)
    true = [torch.bincount(c.truth["train"]["label"], minlength=10) / len(c.train["y"]) for c in made.clients]
    assert torch.allclose(label_shares(noisy), torch.stack(true).double(), atol=1e-6)
    assert card(noisy).rows == card(made).rows
    weights = (made.clients[1].truth["train"]["component"] == 0).double().mean()
    assert card(made).rows[1][-1].split()[0] == f"{weights:.2f}"


def test_text_markdown_and_terminal_say_the_same():
    made = card(by_hand())
    text, marked = str(made), made.markdown()
    screen = Console(file=io.StringIO(), width=100)
    screen.print(made)
    terminal = screen.file.getvalue()
    for form in (text, marked, terminal):
        for word in ("hand: 2 clients, 8 training examples, 4 classes", "0.81", "label distance: 0.50 on average"):
            assert word in form
    assert "[a]|b" in text
    assert "[a]|b" in terminal  # it isn't taken for markup
    assert r"| [a]\|b | 4 |" in marked
    rows = [line for line in marked.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {6, 4}


def test_many_clients_are_summed_up():
    text = str(card(gaussians(0.5, n=20, m=30)))
    assert "feature distance" in text
    assert len(text.splitlines()) < 30 + 15


def test_a_regression_and_a_single_client_have_cards():
    quadratics = quadratic_federation(torch.eye(2).expand(3, 2, 2), torch.zeros(3, 2), sizes=[2, 2, 3])
    made = card(quadratics)
    assert made.label_distances is None
    assert "regression" in made.title
    assert "distance:" not in str(card(by_hand().hold_out(1)[0])).split("entropy:")[0]
    with pytest.raises(ValueError, match="is a regression"):
        label_shares(quadratics)
