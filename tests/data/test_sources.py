"""Sources: idx files, checksums, where files are looked for, what they hold; the sets of scikit-learn."""

import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from archipel.data.sources import idx as idx_module
from archipel.data.sources.catalogue import CATALOGUE, load_source, sources
from archipel.data.sources.idx import fashion_mnist, read_idx
from archipel.data.sources.scikit import breast_cancer, diabetes, digits, iris, wine
from archipel.data.sources.source import Source, content_checksum


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
        (gzip.compress(idx(np.zeros((30, 2), np.uint8)), mtime=0)[:-12], "can't be read"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "file")


@pytest.mark.parametrize(("pack", "suffix"), [(lambda content: content, ""), (gzip.compress, ".gz")])
@pytest.mark.parametrize("inner", ["", "fashion-mnist", "FashionMNIST/raw"])
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
    about = replace(idx_module.FASHION_MNIST, elsewhere=(tmp_path / "nowhere",))
    monkeypatch.setattr(idx_module, "FASHION_MNIST", about)
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist") as error:
        fashion_mnist(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_fashion_mnist_is_complete(fashion):
    source = fashion
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


@pytest.mark.parametrize(
    ("load", "counts"),
    # Examples of each class, as the data sets' descriptions give them.
    [(breast_cancer, [212, 357]), (wine, [59, 71, 48]), (iris, [50, 50, 50])],
)
def test_tables_of_scikit_learn(load, counts):
    source = load()
    assert source.kind == "table"
    assert source.x.dtype == torch.float32
    assert len(source.features) == source.x.shape[1]
    assert source.y.bincount().tolist() == counts
    assert len(source.classes) == len(counts)


def test_diabetes_is_a_regression():
    source = diabetes()
    assert source.classes == ()
    assert source.y.dtype == torch.float32
    # Features are centred, with a sum of squares of 1, as scikit-learn's description says.
    assert source.x.double().sum(0).abs().max() < 1e-5
    assert source.x.double().square().sum(0).allclose(torch.ones(10, dtype=torch.float64), atol=1e-5)
    assert (source.y.min(), source.y.max()) == (25, 346)


def test_sources_are_found_by_name():
    assert {"fashion-mnist", "digits", "cifar10", "cifar100", "femnist", "fed-isic2019", "hapt"} < set(sources())
    assert all(line.endswith(".") for line in sources().values())
    assert load_source("digits").name == "digits"
    with pytest.raises(ValueError, match="Did you mean 'fashion-mnist'"):
        load_source("fashion_mnist")
    with pytest.raises(ValueError, match="There are: fashion-mnist, digits"):
        load_source("xyz")


def test_unknown_options_are_refused_with_what_there_is():
    with pytest.raises(ValueError, match="heart-disease has no option 'imputation'; it has missing, verify"):
        load_source("heart-disease", imputation="median")
    with pytest.raises(ValueError, match="digits has no option 'verify'; it has none"):
        load_source("digits", verify=False)


@pytest.mark.parametrize("about", CATALOGUE, ids=lambda about: about.name)
def test_every_source_says_how_to_get_it_and_whom_to_cite(about, tmp_path, monkeypatch):
    assert all([about.title, about.size, about.citation, about.licence, about.obtain])
    monkeypatch.delenv("ARCHIPEL_DATA", raising=False)
    nowhere = replace(about, elsewhere=())
    assert nowhere.found(tmp_path) == (not about.files)
    if about.files:
        with pytest.raises(FileNotFoundError, match="ARCHIPEL_DATA") as error:
            nowhere.locate(tmp_path)
        assert about.obtain in str(error.value)
        assert str(tmp_path) in str(error.value)


def source_of(**parts):
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])
    return Source(**{"x": x, "y": y, "classes": ("a", "b"), "name": "tiny", "kind": "table"} | NOTHING | parts)


NOTHING = {"citation": "", "licence": "", "checksum": ""}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"y": torch.tensor([0, 1, 2, 0])}, "class codes 0 to 2, but has 2 classes, with codes 0 to 1"),
        ({"y": torch.tensor([0, -1, 1, 0])}, "class codes -1 to 1"),
        ({"y": torch.tensor([0, 1])}, "columns of different lengths"),
        ({"client": torch.tensor([0, 1, 2, 0]), "client_names": ("A", "B")}, "client codes 0 to 2, but has 2 clients"),
        ({"extra": {"age": torch.zeros(3)}}, "columns of different lengths"),
        ({"superclass": torch.tensor([0]), "superclasses": ("s",)}, "has 2 classes, but 1 superclasses"),
        (
            {"superclass": torch.tensor([0, 1]), "superclasses": ("s",)},
            "superclass codes 0 to 1, but has 1 superclasses",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(parts, message):
    assert len(source_of()) == 4
    with pytest.raises(ValueError, match=message):
        source_of(**parts)


def test_checksums_are_of_the_bytes_in_order():
    x, y, client = np.arange(12, dtype=np.float16).reshape(4, 3), np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])
    expected = hashlib.sha256(x.tobytes() + bytes([0, 1, 2, 3]) + client.astype("<i8").tobytes()).hexdigest()
    assert content_checksum(x, y, client) == expected
    targets = y.astype(np.float32)
    assert content_checksum(x, targets) == hashlib.sha256(x.tobytes() + targets.tobytes()).hexdigest()
