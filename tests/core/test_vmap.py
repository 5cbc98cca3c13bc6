"""What lies beneath vmap: stacked tensors and rows of them, against indexing client by client."""

import pytest
import torch

from archipel.core.vmap import VmapLevel, take_rows

X = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([[5, 0], [1, 1], [2, 4], [0, 3]])


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_the_stacked_tensor_has_the_clients_first_wherever_they_came_from(dim):
    seen = []

    def step(x):
        level = VmapLevel.current()
        seen.append((level.size, level.unwrap(x)))
        return level.wrap(level.unwrap(x)) + 0

    back = torch.func.vmap(step, in_dims=dim)(X.movedim(0, dim))
    ((size, stacked),) = seen
    assert size == 4
    assert torch.equal(stacked, X)
    assert torch.equal(back, X)


def test_everyone_owns_a_copy_and_nobody_shares_it():
    kept = []

    def step(x, shared):
        level = VmapLevel.current()
        with level.outside():
            kept.extend([level.copy(x), level.copy(shared)])
            for mine in kept:
                mine.add_(torch.arange(4.0)[:, None])
            lengths = level.norm(kept)
        return level.wrap(kept[1]), level.wrap(lengths)

    x, shared = X[:, 0].clone(), torch.ones(3)
    ends, lengths = torch.func.vmap(step, in_dims=(0, None))(x, shared)
    assert ends.tolist() == [[1.0 + i] * 3 for i in range(4)]
    assert torch.equal(x, X[:, 0])
    assert shared.tolist() == [1.0] * 3
    expected = [torch.cat([X[i, 0] + i, shared + i]).norm() for i in range(4)]
    torch.testing.assert_close(lengths, torch.stack(expected))


def test_alone_everything_is_what_it_is():
    level = VmapLevel.current()
    assert level.size is None
    assert level.unwrap(X) is level.wrap(X) is X
    with level.outside():
        assert torch.equal(level.copy(X), X)
    torch.testing.assert_close(level.norm([X, X]), (2 * X.square().sum()).sqrt())


def test_rows_are_those_of_an_index():
    expected = torch.stack([x[i] for x, i in zip(X, INDEX, strict=True)])
    take = torch.func.vmap(take_rows)
    assert torch.equal(take(X, INDEX), expected)
    assert torch.equal(take(X.mT.contiguous().mT, INDEX), expected)  # strided
    assert torch.equal(torch.func.vmap(take_rows, in_dims=(None, 0))(X[0], INDEX), X[0][INDEX])
    assert torch.equal(torch.func.vmap(take_rows, in_dims=(0, None))(X, INDEX[0]), X[:, INDEX[0]])
    assert torch.equal(torch.func.vmap(take)(X[None], INDEX[None])[0], expected)  # one vmap in another
    assert torch.equal(take_rows(X[0], INDEX[0]), X[0][INDEX[0]])
    assert torch.equal(
        torch.func.grad(lambda x: take_rows(x, INDEX[0]).sum())(X[0])[:, 0], torch.tensor([1.0, 0, 0, 0, 0, 1])
    )
