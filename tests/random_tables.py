"""Small federations' examples, in a module of its own: several folders have a file called ``conftest``."""

import torch


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
