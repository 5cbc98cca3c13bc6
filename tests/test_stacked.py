"""What lies beneath vmap: stacked tensors and rows of them, against indexing client by client."""

import pytest
import torch

from archipel.core.vmap import Stack, take_rows

X = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([[5, 0], [1, 1], [2, 4], [0, 3]])


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_the_stacked_tensor_has_the_clients_first_wherever_they_came_from(dim):
    seen = []

    def step(x):
        stack = Stack.here()
        seen.append((stack.size, stack.under(x)))
        return stack.row(stack.under(x)) + 0

    back = torch.func.vmap(step, in_dims=dim)(X.movedim(0, dim))
    ((size, stacked),) = seen
    assert size == 4
    assert torch.equal(stacked, X)
    assert torch.equal(back, X)


def test_everyone_owns_a_copy_and_nobody_shares_it():
    kept = []

    def step(x, shared):
        stack = Stack.here()
        with stack.beneath():
            kept.extend([stack.own(x), stack.own(shared)])
            for mine in kept:
                mine.add_(torch.arange(4.0)[:, None])
            lengths = stack.length(kept)
        return stack.row(kept[1]), stack.row(lengths)

    x, shared = X[:, 0].clone(), torch.ones(3)
    ends, lengths = torch.func.vmap(step, in_dims=(0, None))(x, shared)
    assert ends.tolist() == [[1.0 + i] * 3 for i in range(4)]
    assert torch.equal(x, X[:, 0])
    assert shared.tolist() == [1.0] * 3
    expected = [torch.cat([X[i, 0] + i, shared + i]).norm() for i in range(4)]
    torch.testing.assert_close(lengths, torch.stack(expected))


def test_alone_everything_is_what_it_is():
    stack = Stack.here()
    assert stack.size is None
    assert stack.under(X) is stack.row(X) is X
    with stack.beneath():
        assert torch.equal(stack.own(X), X)
    torch.testing.assert_close(stack.length([X, X]), (2 * X.square().sum()).sqrt())


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
