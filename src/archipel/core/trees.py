"""Trees of tensors, of which messages, replies and states consist, and their algebra.

A tree is a nested ``dict`` with string keys and tensors at the leaves; a bare tensor is a tree too. Three wrappers mark
leaves that the engines treat specially: :class:`PerClient` in a message, :class:`PerExample` in a client's state, and
:class:`Compressed` in a message or a reply. Traversal follows torch's pytree, as ``torch.func.vmap`` does.

This module is longer than others on purpose: the operations share the wrappers and the walk over leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from archipel.core.torch_internals import foreach_add_, pytree

_SHAPE = "A tree is a nested dict with string keys and tensors at the leaves"
Tree = Any


@dataclass(frozen=True)
class PerClient:
    """In a message: row i of every tensor goes to client i and to no other client.

    Args:
        table: a tree of tensors of shape ``(m, …)``, m the number of enrolled clients.

    >>> PerClient(torch.arange(6.0).reshape(3, 2)).row(1)
    tensor([2., 3.])
    """

    table: Tree

    def row(self, client: int | Tensor) -> Tree:
        """Return the rows of one client, or of several clients for a tensor of numbers."""
        return tree_map(lambda t: t[client], self.table)


@dataclass(frozen=True)
class PerExample:
    """In a client's state: one row for each of its training examples, such as responsibilities.

    Clients have different numbers of examples, so these leaves have different lengths; engines that batch pad them.

    Args:
        values: ``(n_i, …)``; inside a batched step ``(N, …)`` with N the padded length.
    """

    values: Tensor


pytree.register_pytree_node(
    PerExample,
    lambda node: ([node.values], None),
    lambda children, _: PerExample(next(iter(children))),
    serialized_type_name="archipel.core.trees.PerExample",
)


class Coding(Protocol):
    """How a tensor was packed: a compressor, see :mod:`archipel.compress`."""

    def bits(self, size: int, dtype: torch.dtype) -> int:
        """Return the bits of a message of ``size`` entries."""

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Unpack ``(size,)`` entries."""


@dataclass(frozen=True, eq=False)
class Compressed:
    """In a reply or a message: a tensor packed by a compressor.

    Traffic counts its packed bytes. It is unpacked on arrival, so steps and ``round`` never receive one.
    ``torch.func.vmap(compressor)`` makes stacked ones, which a :class:`PerClient` may contain.

    Args:
        parts: the packed tensors, by name.
        coding: the compressor, which unpacks them.
        shape: of the tensor.
        dtype: of the tensor.
    """

    parts: dict[str, Tensor]
    coding: Coding
    shape: tuple[int, ...]
    dtype: torch.dtype

    def decode(self) -> Tensor:
        """Unpack the tensor, with the shape and dtype that it had before."""
        return self.coding.decode(self.parts, math.prod(self.shape), self.dtype).reshape(self.shape)

    @property
    def bits(self) -> int:
        """Bits of the message, before padding to whole bytes."""
        return self.coding.bits(math.prod(self.shape), self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed tensors."""
        return nbytes(self.parts)


pytree.register_pytree_node(
    Compressed,
    lambda node: (list(node.parts.values()), (tuple(node.parts), node.coding, node.shape, node.dtype)),
    lambda children, about: Compressed(dict(zip(about[0], children, strict=True)), *about[1:]),
    serialized_type_name="archipel.core.trees.Compressed",
)


def decoded(tree: Tree) -> Tree:
    """Unpack all compressed leaves of a tree, also in the tables of ``PerClient``."""
    if isinstance(tree, Tensor):
        return tree
    if type(tree) is dict:  # faster than pytree, see tree_map
        return {name: decoded(child) for name, child in tree.items()}
    return pytree.tree_map(_arrived, tree, is_leaf=is_compressed)


def _arrived(leaf: Any) -> Any:
    if isinstance(leaf, PerClient):
        return PerClient(decoded_rows(leaf.table))
    return leaf.decode() if isinstance(leaf, Compressed) else leaf


def decoded_rows(stacked: Tree) -> Tree:
    """Unpack all compressed leaves of a stacked tree, row by row."""
    decode = torch.func.vmap(Compressed.decode)
    return pytree.tree_map(
        lambda leaf: decode(leaf) if isinstance(leaf, Compressed) else leaf, stacked, is_leaf=is_compressed
    )


def is_compressed(node: Any) -> bool:
    """Whether a node is compressed; for pytree's ``is_leaf``."""
    return isinstance(node, Compressed)


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to the leaves of trees with the same structure.

    >>> tree_map(torch.add, {"a": torch.ones(2)}, {"a": torch.ones(2)})
    {'a': tensor([2., 2.])}
    """
    # Plain dicts are walked here, which is several times faster than pytree; pytree handles everything else.
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if type(tree) is dict:
        if not others:
            return {name: tree_map(function, child) for name, child in tree.items()}
        if all(type(other) is dict and other.keys() == tree.keys() for other in others):
            return {name: tree_map(function, tree[name], *[other[name] for other in others]) for name in tree}
    return pytree.tree_map(function, tree, *others)


def map_named(function: Callable[[str, Any], Any], tree: Tree, name: str = "") -> Tree:
    """Apply a function to every leaf and its name, the keys joined by slashes; wrappers count as leaves.

    >>> map_named(lambda name, leaf: name, {"a": {"b": torch.zeros(1)}})
    {'a': {'b': 'a/b'}}
    """
    if not isinstance(tree, dict):
        return function(name, tree)
    return {key: map_named(function, child, f"{name}/{key}" if name else str(key)) for key, child in tree.items()}


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves, in insertion order of the keys."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) is dict:
        return [leaf for child in tree.values() for leaf in leaves(child)]
    if type(tree) is tuple:
        return [leaf for child in tree for leaf in leaves(child)]
    found: list[Any] = pytree.tree_leaves(tree)
    return found


def leaves_like(pattern: Tree, tree: Tree) -> list[Any]:
    """Return a tree's leaves in the order of another tree of the same structure.

    >>> leaves_like({"a": torch.ones(1), "b": torch.ones(1)}, {"b": torch.tensor(2), "a": torch.tensor(1)})
    [tensor(1), tensor(2)]
    """
    if isinstance(pattern, Tensor):
        return [tree]
    if type(pattern) is dict and type(tree) is dict and pattern.keys() == tree.keys():
        return [leaf for name in pattern for leaf in leaves_like(pattern[name], tree[name])]
    return leaves(tree_map(lambda _, leaf: leaf, pattern, tree))


def with_leaves(pattern: Tree, values: Sequence[Any]) -> Tree:
    """Return a tree with the structure of another and with these leaves: the inverse of :func:`leaves`.

    >>> with_leaves({"a": torch.ones(1), "b": {"c": torch.ones(1)}}, [1, 2])
    {'a': 1, 'b': {'c': 2}}
    """
    remaining = iter(values)
    return tree_map(lambda _: next(remaining), pattern)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of the same structure along a new first dimension."""
    return tree_map(lambda *rows: torch.stack(rows), trees[0], *trees[1:])


def row(tree: Tree, index: int | Tensor) -> Tree:
    """Return entry ``index`` of the first dimension of every leaf, or several entries for a tensor of indices."""
    return tree_map(lambda t: t[index], tree)


def put_rows(rows: Tree, index: Tensor, new: Tree) -> Tree:
    """Return stacked trees with new rows at these places."""
    return tree_map(lambda old, new: old.index_copy(0, index, new), rows, new)


def zeros_like(tree: Tree) -> Tree:
    """Return a tree of zeros with the shapes and dtypes of another."""
    return tree_map(torch.zeros_like, tree)


def add(left: Tree, right: Tree, scale: float | Tensor = 1.0) -> Tree:
    """Return ``left + scale · right``.

    >>> add({"a": torch.ones(2)}, {"a": torch.ones(2)}, -0.5)
    {'a': tensor([0.5000, 0.5000])}
    """
    return tree_map(lambda a, b: a + scale * b, left, right)


def scaled(tree: Tree, factor: float | Tensor) -> Tree:
    """Return ``factor · tree`` in the dtype of each leaf; integers are rounded.

    >>> scaled({"a": torch.ones(2), "n": torch.tensor(9)}, 0.5)
    {'a': tensor([0.5000, 0.5000]), 'n': tensor(4)}
    """
    return tree_map(lambda t: _cast(factor * t.to(torch.float64), t.dtype), tree)


def dot(left: Tree, right: Tree) -> Tensor:
    """Return the inner product of two trees, each taken as one long vector."""
    products = leaves(tree_map(lambda a, b: (a * b).sum(), left, right))
    return torch.stack(products).sum() if products else torch.zeros(())


def norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm of a tree, taken as one long vector."""
    return torch.sqrt(dot(tree, tree))


def finite(tree: Tree) -> Tensor:
    """Return whether all floating-point leaves are free of NaN and infinities, a bool tensor of shape ``()``.

    >>> finite({"a": torch.tensor([1.0, float("nan")])})
    tensor(False)
    """
    arrived = [_arrived(leaf) for leaf in pytree.tree_leaves(tree, is_leaf=is_compressed)]
    # NaN and infinities show in the extremes; a mask would be as large as the leaf.
    found = [
        torch.isfinite(torch.stack(torch.aminmax(t))).all() for t in arrived if t.is_floating_point() and t.numel()
    ]
    return torch.stack(found).all() if found else torch.tensor(True)


def nbytes(tree: Tree) -> int:
    """Return the bytes of all leaves, without any framing.

    >>> nbytes({"a": torch.zeros(3), "b": torch.zeros((), dtype=torch.int64)})
    20
    """
    return sum(t.numel() * t.element_size() for t in leaves(tree))


def deliver(message: Tree, client: int) -> Tree:
    """Return what one client receives of a message: its rows of ``PerClient`` leaves, and everything broadcast."""
    return tree_map(lambda leaf: leaf.row(client) if isinstance(leaf, PerClient) else leaf, message)


class Sum:
    """A running sum Σ w_i · tree_i, which takes the memory of one tree.

    It accumulates in float64 for every dtype. With integer weights (counts of examples) every product w · v of a
    float32 leaf is exact in float64, so the mean Σ w v / Σ w of equal values is that value to the bit. ``mean``
    restores the dtype of each leaf; integers are rounded.

    >>> total = Sum()
    >>> total.add({"a": torch.tensor([[0.0], [4.0]])}, [1, 3])
    >>> total.mean()
    {'a': tensor([3.])}
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._totals: list[Tensor] = []
        self._like: Tree = None

    def add(self, stacked: Tree, weights: Sequence[float]) -> None:
        """Add all rows of stacked trees, row i with ``weights[i]``; at least one row is needed."""
        if self._like is None:
            self._like = tree_map(lambda t: t[:0], stacked)
            self._totals = [t.new_zeros(t.shape[1:], dtype=torch.float64) for t in leaves(stacked)]
        found = leaves_like(self._like, stacked)
        if len(weights) == 1:
            foreach_add_(self._totals, [t[0] for t in found], alpha=weights[0])
        else:
            rows = torch.tensor(weights, dtype=torch.float64)
            for total, t in zip(self._totals, found, strict=True):
                total.add_(torch.tensordot(rows.to(t.device), t.to(torch.float64), dims=1))
        self.weight += sum(weights)

    def merge(self, other: Sum) -> None:
        """Add another sum, which has trees of the same form."""
        if self._like is None:
            self.weight, self._totals, self._like = other.weight, other._totals, other._like
        elif other._like is not None:
            foreach_add_(self._totals, other._totals, alpha=1)
            self.weight += other.weight

    @property
    def like(self) -> Tree:
        """The form of the trees: their leaves without rows; ``None`` if none was added."""
        return self._like

    def packed(self) -> Tensor:
        """Return Σ w_i · tree_i as one vector of float64."""
        return torch.cat([torch.empty(0, dtype=torch.float64), *(total.flatten() for total in self._totals)])

    @classmethod
    def unpacked(cls, like: Tree, values: Tensor, weight: float) -> Sum:
        """Return the sum of trees of this form that :meth:`packed` made a vector."""
        total, shapes = cls(), [leaf.shape[1:] for leaf in leaves(like)]
        parts = values.split([shape.numel() for shape in shapes])
        total.weight, total._like = weight, like
        total._totals = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        return total

    def total(self) -> Tree:
        """Return Σ w_i · tree_i in the dtype of each leaf."""
        return self._scaled(1.0)

    def mean(self) -> Tree:
        """Return Σ w_i · tree_i / Σ w_i in the dtype of each leaf."""
        return self._scaled(self.weight)

    def _scaled(self, divisor: float) -> Tree:
        if self._like is None or divisor == 0:
            raise ValueError("There is nothing to average: no tree with a positive weight was added.")
        total = with_leaves(self._like, self._totals)
        return tree_map(lambda t, like: _cast(t / divisor, like.dtype), total, self._like)


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if dtype.is_floating_point or dtype.is_complex else value.round().to(dtype)


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by names with slashes; a trailing ``!`` marks ``PerExample`` leaves.

    >>> list(flatten({"model": {"weight": torch.zeros(1)}, "w": PerExample(torch.zeros(2))}))
    ['model/weight', 'w!']
    """
    if isinstance(tree, Tensor):
        return {prefix: tree}
    if isinstance(tree, PerExample):
        return {prefix + "!": tree.values}
    if not isinstance(tree, dict):
        raise TypeError(f"{_SHAPE}; at {prefix or 'the root'} it has a {type(tree).__name__}.")
    named: dict[str, Tensor] = {}
    for name, child in tree.items():
        if not isinstance(name, str) or not name or "/" in name or name.endswith("!"):
            raise TypeError(f"{_SHAPE}; the key {name!r} is not a plain name (no slash, no final '!').")
        below = f"{prefix}/{name}" if prefix else name
        # An empty dict has no leaf that carries its name, so it gets an empty tensor.
        named |= flatten(child, below) if child != {} else {below + "/": torch.empty(0)}
    return named


def unflatten(named: dict[str, Tensor]) -> Tree:
    """Return the tree of these names: the inverse of :func:`flatten`.

    >>> tree = {"a": {"b": torch.ones(1)}, "c": {}}
    >>> unflatten(flatten(tree)) == tree
    True
    """
    if set(named) == {""}:
        return named[""]
    if set(named) == {"!"}:
        return PerExample(named["!"])
    root: dict[str, Any] = {}
    for path, value in named.items():
        *parents, last = path.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        if last.endswith("!"):
            node[last[:-1]] = PerExample(value)
        elif last:
            node[last] = value
    return root


def vector(tree: Tree) -> Tensor:
    """Return all entries of a tree's tensors as one vector.

    >>> vector({"a": torch.tensor(1.0), "b": torch.tensor([2.0, 3.0])})
    tensor([1., 2., 3.])
    """
    return torch.cat([t.reshape(-1) for t in leaves(tree)])


def from_vector(entries: Tensor, like: Tree) -> Tree:
    """Return the inverse of :func:`vector`: a tree with the shapes of another.

    >>> from_vector(torch.tensor([1.0, 2.0, 3.0]), {"a": torch.zeros(()), "b": torch.zeros(2)})
    {'a': tensor(1.), 'b': tensor([2., 3.])}
    """
    parts = iter(entries.split([t.numel() for t in leaves(like)]))
    return tree_map(lambda t: next(parts).reshape(t.shape), like)
