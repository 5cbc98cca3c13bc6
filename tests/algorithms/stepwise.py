"""A run's rounds one by one, with every client's state, for tests that follow an algorithm in numpy."""

import numpy as np
import torch
from quadratics import times, vectors

from archipel import PerClient, Sample
from archipel.core import keys
from archipel.engines import Handle, Ledger, Loop
from archipel.learning.quadratic import quadratic_federation

PAIRS = Sample(count=2)


def arrays(**settings):
    """``vectors``, as numpy arrays."""
    return tuple(t.numpy() for t in vectors(**settings))


def federation_of(A, a, sizes=None):
    return quadratic_federation(torch.tensor(A), torch.tensor(a), sizes)


def gradients(A, a, theta):
    """∇f_k(θ_k), ``(m, d)``, for one θ or one a client."""
    return times(np.asarray(A), theta - np.asarray(a))


def theta(tree):
    return tree["theta"].numpy()


def states_of(clients, *path):
    """One entry of every client's state, ``(m, d)``."""
    for name in path:
        clients = [client[name] for client in clients]
    return np.stack([theta(client) for client in clients])


def unreliable(round, client):
    """Who answers, most of the time."""
    return (round + client) % 5 != 0


def rounds_of(algorithm, federation, rounds, cohort=None, answers=None, carrier=None, edges=()):
    """The rounds of ``fit``, without the engine around them: who answered, the server's state, the clients', info."""
    everyone, root = torch.arange(len(federation)), keys.key(0)
    carrier = carrier or Loop(algorithm, federation)
    with torch.no_grad():
        outside = Handle(carrier, everyone, federation.sizes, 0, rounds, Ledger(), edges=edges)
        server = algorithm.init_server(outside, keys.fold(root, "server"))
        outside.apply(algorithm.enrol, {"server": server, "index": PerClient(everyone)}, keys.fold(root, "enrol"))
        for t in range(rounds):
            ids = cohort.draw(federation.sizes, keys.fold(root, "cohort", t)) if cohort else everyone
            handle = Handle(carrier, ids, federation.sizes, t, rounds, Ledger(), answers, edges)
            server, info = algorithm.round(server, handle, keys.fold(root, "round", t))
            present = [k for k in ids.tolist() if answers is None or answers(t, k)]
            yield present, server, [carrier.states[k] for k in everyone.tolist()], info


class Listening(Loop):
    """A loop that remembers what was sent to clients and what came back."""

    def __init__(self, algorithm, federation):
        super().__init__(algorithm, federation)
        self.sent, self.heard = [], []

    def run(self, step, message, ids, key, *, training):
        self.sent.append(message)
        for outcome in super().run(step, message, ids, key, training=training):
            self.heard.append(outcome.replies)
            yield outcome
