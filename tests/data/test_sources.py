"""Sources: idx files, checksums, where files are looked for, what they hold."""

import gzip
import struct

import numpy as np
import pytest
import torch

from archipel.data import digits, fashion_mnist, load_source
from archipel.data.sources import FASHION_FOLDER, read_idx, sources

INSTALL = "these tests read Fashion-MNIST: apt-get install dataset-fashion-mnist"


def idx(array):
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_tiny(folder, pack=lambda content: content, suffix=""):
    """Three training and two test images under Fashion-MNIST's names; returns all five images and labels."""
    x = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
    y = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(x[rows])))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(y[rows])))
    return x, y


@pytest.mark.parametrize("shape", [(7,), (3, 2, 4), (0, 2, 2)])
@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress])
def test_idx_files_are_read_back(tmp_path, shape, pack):
    array = np.random.default_rng(0).integers(256, size=shape).astype(np.uint8)
    (tmp_path / "file").write_bytes(pack(idx(array)))
    read = read_idx(tmp_path / "file")
    assert read.dtype == np.uint8
    assert read.shape == shape
    assert np.array_equal(read, array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (b"\x89PNG\r\n", "isn't an idx file of bytes"),
        (struct.pack(">4B1I", 0, 0, 0x0D, 1, 2) + b"00000000", "isn't an idx file of bytes"),  # floats
        (idx(np.zeros((3, 2), np.uint8))[:-1], "doesn't fit its header"),
        (idx(np.zeros((3, 2), np.uint8)) + b"0", "doesn't fit its header"),
        (b"\x00\x00\x08\x03\x00\x00", "doesn't fit its header"),
        (gzip.compress(idx(np.zeros((30, 2), np.uint8)))[:-12], "damaged gzip"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "file")


@pytest.mark.parametrize(("pack", "suffix"), [(lambda content: content, ""), (gzip.compress, ".gz")])
@pytest.mark.parametrize("inner", ["", "fashion-mnist"])
def test_the_users_folder_comes_first_and_train_and_test_are_pooled(tmp_path, pack, suffix, inner):
    x, y = write_tiny(tmp_path / inner, pack, suffix)
    source = fashion_mnist(tmp_path, verify=False)
    assert np.array_equal(source.x.numpy(), x)
    assert source.y.tolist() == y.tolist()


def test_the_environment_names_a_folder(tmp_path, monkeypatch):
    write_tiny(tmp_path / "fashion-mnist")
    monkeypatch.setenv("ARCHIPEL_DATA", str(tmp_path))
    assert len(fashion_mnist(verify=False)) == 5


def test_other_content_under_the_same_names_is_refused(tmp_path):
    write_tiny(tmp_path)
    with pytest.raises(ValueError, match="don't hold Fashion-MNIST: the SHA-256") as error:
        fashion_mnist(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_missing_files_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("ARCHIPEL_DATA", raising=False)
    monkeypatch.setattr("archipel.data.sources.FASHION_FOLDER", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist") as error:
        fashion_mnist(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_fashion_mnist_is_complete():
    assert FASHION_FOLDER.is_dir(), INSTALL
    source = fashion_mnist()
    assert source.x.shape == (70_000, 28, 28)
    assert source.x.dtype == torch.uint8
    # 6000 + 1000 of each class, as published; the first training label is an ankle boot (9), the first test label, too.
    assert source.y.bincount().tolist() == [7000] * 10
    assert source.y[60_000:].bincount().tolist() == [1000] * 10
    assert source.classes[source.y[0]] == source.classes[source.y[60_000]] == "Ankle boot"


def test_digits_fill_the_range_of_bytes():
    from sklearn.datasets import load_digits

    source = digits()
    assert source.x.shape == (1797, 8, 8)
    assert (source.x.min().item(), source.x.max().item()) == (0, 255)
    # 255/16 = 15.9: rounding keeps the 17 values apart, and undoes itself.
    assert np.array_equal(np.rint(source.x.numpy() * (16 / 255)), load_digits().images)
    assert np.array_equal(source.y.numpy(), load_digits().target)


def test_sources_are_found_by_name():
    assert set(sources()) == {"fashion-mnist", "digits"}
    assert all(line.endswith(".") for line in sources().values())
    assert load_source("digits").name == "digits"
    with pytest.raises(ValueError, match="Did you mean 'fashion-mnist'"):
        load_source("fashion_mnist")
    with pytest.raises(ValueError, match="There are: fashion-mnist, digits"):
        load_source("xyz")
