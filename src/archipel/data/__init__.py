"""Data: sources, how they're divided over clients, how clients are made to differ, and federations."""

from archipel.data.dual import dual_heterogeneity, oracle_view
from archipel.data.federation import Client, Federation
from archipel.data.inputs import Inputs
from archipel.data.partitions import dirichlet_by_class, iid
from archipel.data.sources import Source, digits, fashion_mnist, load_source

__all__ = [
    "Client",
    "Federation",
    "Inputs",
    "Source",
    "digits",
    "dirichlet_by_class",
    "dual_heterogeneity",
    "fashion_mnist",
    "iid",
    "load_source",
    "oracle_view",
]
