"""Compressed tensors between server and clients: counted at their bits, unpacked on arrival, probed with patience."""

import pytest
import torch

from archipel import Algorithm, PerClient
from archipel.compress import Dithering
from archipel.core import keys
from archipel.core.trees import Compressed, nbytes
from archipel.core.vmap import inside_vmap
from archipel.engines import Batched, Handle, Ledger, Loop, Wire


class Downlink(Algorithm):
    """Sends compressed messages, broadcast and a row each, and hears what arrived."""

    def __init__(self, compressor):
        self.compressor = compressor

    def init_server(self, clients, key):
        return {}

    def round(self, server, clients, key):
        return server, {}

    def echo(self, client, message, data, key):
        assert not isinstance(message["all"], Compressed)
        return client, {"all": message["all"], "own": message["own"], "back": self.compressor(message["own"], key)}


@pytest.mark.parametrize("kind", [Loop, Batched, Wire])
def test_compressed_messages_and_replies_count_at_their_bits_and_arrive_unpacked(uneven, kind):
    compressor = Dithering(levels=2)
    algorithm = Downlink(compressor)
    carrier = kind(algorithm, uneven)
    try:
        handle = Handle(carrier, torch.arange(4), uneven.sizes, 0, 1, Ledger())
        x = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
        shared = compressor(x.flatten(), keys.key(5))
        rows = torch.func.vmap(compressor)(x, keys.fold(keys.key(6), torch.arange(4)))
        message = {"all": shared, "own": PerClient(rows)}
        found = handle.collect(algorithm.echo, message, keys.key(7)).value
        total = handle.sum(algorithm.echo, message, keys.key(7), "uniform")
        heard = handle.evaluate(algorithm.echo, message, keys.key(7)).value
    finally:
        carrier.close()
    own = torch.stack([compressor(x[i], keys.fold(keys.key(6), i)).decode() for i in range(4)])
    back = torch.stack([compressor(own[i], keys.fold(keys.key(7), i)).decode() for i in range(4)])
    for replies in (found, heard):
        assert torch.equal(replies["all"], shared.decode().expand(4, -1))
        assert torch.equal(replies["own"], own)
        assert torch.equal(replies["back"], back)
    assert torch.equal(total["back"], back.double().sum(0).float())
    # 40 and 10 entries of 3 bits and a norm; what was broadcast is sent once
    assert nbytes(shared) == 4 + 15
    assert handle.ledger.downlink == 4 * 19 + 2 * 4 * (4 + 4)
    assert handle.ledger.uplink == 2 * 4 * (40 * 4 + 10 * 4 + 8)


class Edgy(Algorithm):
    """Sends 400 values, of which some fall on another level when clients are batched, as roundings may have it."""

    def __init__(self, flipped):
        self.flipped = flipped

    def init_server(self, clients, key):
        return {}

    def round(self, server, clients, key):
        return server, {}

    def send(self, client, message, data, key):
        other = torch.arange(400) < (self.flipped if inside_vmap() else 0)
        x = torch.where(other, 0.5, 0.0)
        x = torch.cat([x, message["one"][None]])
        return client, Dithering(levels=2, norm=float("inf"))(x, key)


@pytest.mark.parametrize(("flipped", "engine"), [(4, "batched"), (5, "loop")])
def test_a_few_values_on_another_level_are_no_reason_to_run_clients_one_by_one(uneven, flipped, engine):
    algorithm = Edgy(flipped)
    carrier = Batched(algorithm, uneven)
    handle = Handle(carrier, torch.arange(4), uneven.sizes, 0, 1, Ledger())
    handle.collect(algorithm.send, {"one": torch.tensor(1.0)}, keys.key(0))
    assert carrier.describe()["engine"] == engine  # one in a hundred of 401 is 4
