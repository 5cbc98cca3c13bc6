"""Data sets as they come, before they are divided over clients: one module a publisher, one function a data set."""

from archipel.data.sources.catalogue import CATALOGUE, load_source, sources
from archipel.data.sources.cifar import cifar10, cifar100
from archipel.data.sources.flamby import fed_isic2019
from archipel.data.sources.folders import client_files, image_folders
from archipel.data.sources.hub import from_hub
from archipel.data.sources.idx import FASHION_FOLDER, fashion_mnist, read_idx
from archipel.data.sources.leaf import femnist
from archipel.data.sources.scikit import breast_cancer, diabetes, digits, iris, wine
from archipel.data.sources.source import About, Source
from archipel.data.sources.uci import hapt, heart_disease
from archipel.data.sources.unmarked import crossbill

__all__ = [
    "CATALOGUE",
    "FASHION_FOLDER",
    "About",
    "Source",
    "breast_cancer",
    "cifar10",
    "cifar100",
    "client_files",
    "crossbill",
    "diabetes",
    "digits",
    "fashion_mnist",
    "fed_isic2019",
    "femnist",
    "from_hub",
    "hapt",
    "heart_disease",
    "image_folders",
    "iris",
    "load_source",
    "read_idx",
    "sources",
    "wine",
]
