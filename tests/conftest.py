"""What all tests share: one thread, a small federation of uneven clients, and where real data are."""

import os
from pathlib import Path

import pytest
import torch

from archipel import Federation
from archipel.data import fashion_mnist
from archipel.data.sources.idx import FASHION_FOLDER
from random_tables import random_tables

torch.set_num_threads(1)  # tests are tiny, and several run at a time on shared machines


@pytest.fixture(scope="session")
def uneven():
    """Four clients with 9, 12, 25 and 17 training examples of three features and three classes, and tests."""
    federation = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
    assert len(set(federation.sizes.tolist())) == 4
    return federation


BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def missing(what):
    """Ends a test whose data aren't here: a failure in CI, where they must be, and a stated skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def fashion():
    """Fashion-MNIST from the Debian package."""
    if not FASHION_FOLDER.is_dir():
        missing("this test reads Fashion-MNIST: apt-get install dataset-fashion-mnist")
    return fashion_mnist()


@pytest.fixture(scope="session")
def data_dir():
    """The folder of real data: $ARCHIPEL_DATA, or shared/data beside the repository."""
    given = os.environ.get("ARCHIPEL_DATA")
    folder = Path(given) if given else BESIDE
    if not (folder / "heart-disease").is_dir():
        missing(
            "this test reads real data (femnist-200.npz, heart-disease/, hapt-windows.npz, crossbill.csv), which "
            f"aren't in {folder}. Set the environment variable ARCHIPEL_DATA to the folder that holds them."
        )
    return folder
