"""What all tests share: one thread, and a small federation of uneven clients."""

import pytest
import torch

from archipel import Federation

torch.set_num_threads(1)  # tests are tiny, and several run at a time on shared machines


def random_tables(sizes, features=3, classes=3, seed=0):
    """Per client (x, y): normal features whose sign decides the class, by a rule that is the client's own."""
    generator = torch.Generator().manual_seed(seed)
    arrays = []
    for client, n in enumerate(sizes):
        x = torch.randn(n, features, generator=generator) + client
        y = ((x[:, 0] > client).long() + (x[:, 1] > client).long() + client) % classes
        y[:classes] = torch.arange(classes)  # every class is there
        arrays.append((x, y))
    return arrays


@pytest.fixture(scope="session")
def uneven():
    """Four clients with 9, 12, 25 and 17 training examples of three features and three classes, and tests."""
    federation = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
    assert len(set(federation.sizes.tolist())) == 4
    return federation
