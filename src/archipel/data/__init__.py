"""Data: sources, how they're divided over clients, how clients are made to differ, and federations."""

from archipel.data.divide import divide, latent_components
from archipel.data.dual_heterogeneity import dual_heterogeneity, oracle_view
from archipel.data.federation import Client, Federation
from archipel.data.gaussian_clients import GaussianMixture
from archipel.data.inputs import Inputs
from archipel.data.natural import natural
from archipel.data.partitions.by_name import partition
from archipel.data.partitions.splits import dirichlet_by_class, iid
from archipel.data.shifts.compose import compose, make_shift
from archipel.data.sources.catalogue import load_source
from archipel.data.sources.idx import fashion_mnist
from archipel.data.sources.scikit import digits
from archipel.data.sources.source import Source
from archipel.data.synthetic import synthetic

__all__ = [
    "Client",
    "Federation",
    "GaussianMixture",
    "Inputs",
    "Source",
    "compose",
    "digits",
    "dirichlet_by_class",
    "divide",
    "dual_heterogeneity",
    "fashion_mnist",
    "iid",
    "latent_components",
    "load_source",
    "make_shift",
    "natural",
    "oracle_view",
    "partition",
    "synthetic",
]
