"""Pooling before ReLU gives what was written, to the bit: torch's own order is the witness."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from archipel import Network
from archipel.core import keys
from archipel.learning.pooling import PoolFirst, order, pool_first


def _network(pool: nn.MaxPool2d, inplace: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace), pool, nn.Conv2d(4, 3, 3), nn.Flatten())


def _images(n: int = 3, size: int = 9) -> Tensor:
    """With patches of one value, where a window's maximum stands in several places, and patches that ReLU clears."""
    x = torch.randn(n, 2, size, size, generator=torch.Generator().manual_seed(0))
    x[:, :, :5, :5] = 0.0
    x[0] = -1.0
    x[1, :, 5:] = x[1, :, 5:].round()
    return x


def _gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = module(x)
    return [out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])]


POOLS = {
    "2": nn.MaxPool2d(2),
    "overlapping": nn.MaxPool2d(3, 1),
    "padded": nn.MaxPool2d(3, 2, padding=1),
    "ceil": nn.MaxPool2d(2, ceil_mode=True),
    "oblong": nn.MaxPool2d((2, 3), (1, 2)),
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_values_and_gradients_are_those_of_the_order_that_was_written(name: str, last: bool, inplace: bool) -> None:
    written, x = _network(POOLS[name], inplace), _images()
    if last:
        written.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    carried_out = pool_first(written)
    assert isinstance(carried_out, PoolFirst)
    assert type(written) is nn.Sequential
    for ours, torchs in zip(_gradients(carried_out, x), _gradients(written, x), strict=True):
        assert torch.equal(ours, torchs)


def test_it_is_the_pool_that_runs_first() -> None:
    network = _network(nn.MaxPool2d(2))
    assert [type(part).__name__ for part in order(list(network))] == [
        "Conv2d", "MaxPool2d", "ReLU", "Conv2d", "Flatten"
    ]  # fmt: skip
    two = [nn.ReLU(), nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2), nn.Tanh()]
    assert [type(part).__name__ for part in order(two)] == ["ReLU", "MaxPool2d", "MaxPool2d", "ReLU", "Tanh"]


def test_parts_keep_their_places_and_tensors() -> None:
    inner = _network(nn.MaxPool2d(2))
    whole = nn.Sequential(inner, nn.BatchNorm1d(12))
    carried_out = pool_first(whole)
    for (name, tensor), (other, theirs) in zip(
        [*carried_out.named_parameters(), *carried_out.named_buffers()],
        [*whole.named_parameters(), *whole.named_buffers()],
        strict=True,
    ):
        assert name == other
        assert tensor is theirs
    within = carried_out.get_submodule("0")
    assert isinstance(within, PoolFirst)
    assert isinstance(within[1], nn.ReLU)
    assert torch.equal(within[:2](_images()), inner[:2](_images()))


class _Own(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for part in self:
            x = part(x) + 1
        return x


def test_what_it_must_not_exchange_stays() -> None:
    alone = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())
    own = _Own(nn.ReLU(), nn.MaxPool2d(2))
    leaky = nn.Sequential(nn.LeakyReLU(-0.5), nn.MaxPool2d(2))
    indices = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True))
    dilated = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, padding=1, dilation=3))
    for module in (alone, own, leaky, indices, dilated):
        assert pool_first(module) is module


def test_who_looks_at_an_activation_sees_what_was_written() -> None:
    seen: list[tuple[int, ...]] = []
    network = _network(nn.MaxPool2d(2))
    carried_out = pool_first(network)
    carried_out.get_submodule("1").register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    carried_out(_images())
    assert seen == [(3, 4, 9, 9)]


def test_a_network_carries_it_out_and_travels() -> None:
    module = _network(nn.MaxPool2d(2))
    network = Network(module)
    params, buffers = network.init(keys.key(1))
    x = _images()
    named = {name: params[name.split(".")[0]][name.split(".")[1]] for name, _ in module.named_parameters()}
    witness = torch.func.functional_call(module, named, (x.contiguous(memory_format=torch.channels_last),))
    assert isinstance(network._optimised, PoolFirst)
    for one in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(one(params, buffers, x)[0], witness)
