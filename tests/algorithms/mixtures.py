"""Rounds of mixture methods from a given state, and their models in numpy, for the tests of this folder."""

import numpy as np
import torch
from scipy.special import log_softmax

from archipel import Federation
from archipel.core import keys
from archipel.core.trees import PerClient
from archipel.engines import Handle, Ledger, Loop


def opened(algorithm, federation, carrier=Loop, rounds=10, **given):
    """A handle on enrolled clients and the server's first state, some of its entries as given."""
    carrier, everyone = carrier(algorithm, federation), torch.arange(len(federation))
    handle, key = Handle(carrier, everyone, federation.sizes, 0, rounds, Ledger()), keys.key(0)
    with torch.no_grad():
        server = algorithm.init_server(handle, key) | given
        handle.apply(algorithm.enrol, {"server": server, "index": PerClient(everyone)}, key)
    return handle, server


def rounds_from(algorithm, handle, server, rounds=1):
    """The server's state after some rounds, and the clients'."""
    with torch.no_grad():
        for t in range(rounds):
            moment = Handle(handle.carrier, handle.ids, handle.sizes, t, handle.rounds, Ledger())
            server, _ = algorithm.round(server, moment, keys.fold(keys.key(0), t))
    return server, [handle.carrier.states[i] for i in range(handle.population)]


def tables(sizes=(30, 50, 20), d=2, seed=0):
    """Clients around different centres, two classes; the label's rule flips with a hidden component."""
    rng = np.random.default_rng(seed)
    arrays = []
    for i, n in enumerate(sizes):
        hidden = rng.random(n) < 0.5
        x = rng.normal(size=(n, d)) + i + np.where(hidden, 1.0, -1.0)[:, None]
        arrays.append((x.astype(np.float32), ((x[:, 0] > i) ^ hidden).astype(int)))
    return Federation.from_arrays(arrays, test=0.2)


def inputs_of(federation, client, split="train"):
    """Normalised inputs in float64, and classes."""
    columns = getattr(federation.clients[client], split)
    return federation.inputs.normalise(columns["x"]).double().numpy(), columns["y"].numpy()


def random_heads(count, outputs, features, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(count, outputs, features, generator=rng),
        "bias": torch.randn(count, outputs, generator=rng),
    }


def log_probabilities(heads, z):
    """``(n, C, K)``: every head's log-softmax at features z."""
    weight, bias = (heads[name].double().numpy() for name in ("weight", "bias"))
    return log_softmax(np.einsum("nd,ckd->nck", z, weight) + bias, axis=2)
