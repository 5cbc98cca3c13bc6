"""A window shows what a padded copy would hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archipel import Examples, Federation
from archipel.core.row_window import RowWindow
from archipel.engines import Batched
from archipel.engines.batched import _Rows
from archipel.engines.setting import Setting

SIZES = [[3, 3, 3, 3], [1, 4, 2, 3], [2, 3, 1, 0]]
CHOSEN = [2, 0, 3]


def _columns(sizes: list[int]) -> list[dict[str, Tensor]]:
    """Each row says whose it is and which."""
    return [{"x": torch.stack([torch.full((n,), i), torch.arange(n)], 1), "y": 10 * i + torch.arange(n)}
            for i, n in enumerate(sizes)]  # fmt: skip


def _padded(sizes: list[int], name: str) -> list[Tensor]:
    """What the chosen clients' windows must show, but for those who hold nothing."""
    longest = max(sizes)
    return [_columns(sizes)[i][name][[min(row, sizes[i] - 1) for row in range(longest)]] for i in CHOSEN if sizes[i]]


@pytest.mark.parametrize("sizes", SIZES)
def test_whole_columns_are_padded_by_the_last_row(sizes: list[int]) -> None:
    examples = _Rows.of(_columns(sizes), Setting()).rows(torch.tensor(CHOSEN))
    assert all(isinstance(column, RowWindow) for column in examples.stored.values())
    seen = torch.func.vmap(
        lambda e: (e["x"], e.columns["y"], e.mask, e.adding(z=e["y"])["z"]), in_dims=(_dims(examples),)
    )
    x, y, mask, z = seen(examples)
    for place, (rows, labels) in enumerate(zip(_padded(sizes, "x"), _padded(sizes, "y"), strict=True)):
        assert torch.equal(x[place], rows)
        assert torch.equal(y[place], labels)
        assert torch.equal(z[place], labels)
    assert mask.sum(1).tolist() == [sizes[i] for i in CHOSEN]


def _dims(examples: Examples) -> Examples:
    held = {name: RowWindow(None, 0, 0, column.length) for name, column in examples.stored.items()}  # type: ignore[arg-type, union-attr]
    return Examples(held, 0, examples.min_count)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", SIZES)
def test_pieces_and_rows_are_those_of_the_columns(sizes: list[int]) -> None:
    examples = _Rows.of(_columns(sizes), Setting()).rows(torch.tensor(CHOSEN))

    def both(e: Examples, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        pieces = torch.cat([piece["x"] for piece in e.pieces(2)])
        return pieces, e["x"], e.take(index)["x"], e["x"][index]

    index = torch.tensor([[0, 0], [1, 0], [0, 0]])
    pieces, whole, taken, expected = torch.func.vmap(both, in_dims=(_dims(examples), 0))(examples, index)
    assert torch.equal(pieces, whole)
    assert torch.equal(taken, expected)


def test_it_may_stand_inside_other_transformations() -> None:
    table, first = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 3])

    def loss(weight: Tensor, start: Tensor) -> Tensor:
        return (RowWindow(table, start, start + 2, 3).take(torch.arange(3)) * weight).sum()

    slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(torch.ones(2), first)
    assert torch.equal(slopes, torch.stack([table[:3].sum(0), table[3:].sum(0)]))


def test_only_a_cohort_in_its_order_of_equal_clients_is_a_view() -> None:
    rows = _Rows.of(_columns([3, 3, 3]), Setting())
    column = rows.rows(torch.tensor([1, 2])).stored["x"]
    assert isinstance(column, Tensor)
    assert column.data_ptr() == rows.columns["x"][3:].data_ptr()
    assert isinstance(rows.rows(torch.tensor([2, 1])).stored["x"], RowWindow)


def test_a_chunk_of_minibatches_copies_their_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from archipel import SGD, FedAvg, Sample, classification, fit

    taken: list[int] = []
    take = RowWindow.take

    def counting(window: RowWindow, index: Tensor) -> Tensor:
        taken.append(index.shape[-1])
        return take(window, index)

    monkeypatch.setattr(RowWindow, "take", counting)
    islands = Federation.from_arrays([(torch.randn(50, 3), torch.arange(50) % 2) for _ in range(6)])
    task = classification(torch.nn.Linear(3, 4), islands)
    fit(
        FedAvg(task, SGD(lr=0.1, steps=2, batch=5)),
        islands,
        rounds=1,
        cohort=Sample(count=3),
        setting=Setting(engine=Batched),
        until=1,
    )
    assert 5 in taken
    assert sum(taken[: taken.index(5) + 4]) <= 4 * 5
