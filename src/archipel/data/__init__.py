"""Data: sources, how they're divided over clients, how clients are made to differ, and federations."""

from archipel.data.compose import compose, make_shift
from archipel.data.dividing import divide, latent_components
from archipel.data.dual import dual_heterogeneity, oracle_view
from archipel.data.federation import Client, Federation
from archipel.data.gaussians import GaussianMixture
from archipel.data.inputs import Inputs
from archipel.data.natural_clients import natural
from archipel.data.partitions import dirichlet_by_class, iid
from archipel.data.schemes import partition
from archipel.data.sources import Source, digits, fashion_mnist, load_source
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
