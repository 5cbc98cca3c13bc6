"""Where the real data are that tests read: $ARCHIPEL_DATA, or shared/data beside the repository."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir():
    """The folder of real data; a test that needs it fails without it, and never passes unnoticed."""
    given = os.environ.get("ARCHIPEL_DATA")
    folder = Path(given) if given else BESIDE
    if not (folder / "heart-disease").is_dir():
        pytest.fail(
            f"this test reads real data (femnist-200.npz, heart-disease/, hapt-windows.npz, crossbill.csv), which "
            f"aren't in {folder}. Set the environment variable ARCHIPEL_DATA to the folder that holds them."
        )
    return folder
