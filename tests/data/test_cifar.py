"""CIFAR's batches: the official layout, superclasses, and pickles that want more than to hold data."""

import os
import pickle
import tarfile

import numpy as np
import pytest
import torch

from archipel.data.files.pickles import read_pickle
from archipel.data.sources.cifar import CIFAR10_FILES, CIFAR100_FILES, cifar10, cifar100

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def as_python_2_wrote_it(content):
    """The pickle with NumPy 1's module names, in protocol 2, where names are text that a line ends."""
    return pickle.dumps(content, protocol=2).replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def images(n, seed):
    return np.random.default_rng(seed).integers(256, size=(n, 3072)).astype(np.uint8)


def write_cifar10(root, per_batch=4):
    """Six batches and the names, in the official folder; returns images and labels in order."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    *parts, meta = CIFAR10_FILES
    xs, ys = [], []
    for seed, part in enumerate(parts):
        x, y = images(per_batch, seed), np.random.default_rng(seed).integers(10, size=per_batch).tolist()
        batch = {b"batch_label": part.encode(), b"labels": y, b"data": x, b"filenames": [b"a.png"] * per_batch}
        (folder / part).write_bytes(as_python_2_wrote_it(batch))
        xs.append(x)
        ys += y
    names = {b"label_names": [name.encode() for name in NAMES], b"num_vis": 3072}
    (folder / meta).write_bytes(as_python_2_wrote_it(names))
    return np.concatenate(xs), ys


def write_cifar100(root):
    """One image of each class for training and for testing; class k is in superclass k // 5."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    order = np.random.default_rng(0).permutation(100).tolist()
    for part in ("train", "test"):
        batch = {b"data": images(100, 1), b"fine_labels": order, b"coarse_labels": [k // 5 for k in order]}
        (folder / part).write_bytes(as_python_2_wrote_it(batch))
    fine, coarse = [f"fine-{k}".encode() for k in range(100)], [f"coarse-{k}".encode() for k in range(20)]
    (folder / "meta").write_bytes(as_python_2_wrote_it({b"fine_label_names": fine, b"coarse_label_names": coarse}))
    return order


@pytest.mark.parametrize("inner", ["", "cifar10"])
def test_batches_are_pooled_with_the_test_set_last(tmp_path, inner):
    data, labels = write_cifar10(tmp_path / inner)
    source = cifar10(tmp_path, verify=False)
    assert source.x.shape == (24, 3, 32, 32)
    assert source.x.dtype == torch.uint8
    # "The first 1024 entries contain the red channel values …, stored in row-major order": the data set's page.
    row, column = 3, 17
    assert torch.equal(source.x[:, 1, row, column], torch.from_numpy(data[:, 1024 + 32 * row + column]))
    assert source.y.tolist() == labels
    assert source.classes == tuple(NAMES)
    assert source.test.tolist() == [False] * 20 + [True] * 4


def test_the_archive_is_read_without_unpacking_it(tmp_path):
    write_cifar10(tmp_path / "files")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "files" / "cifar-10-batches-py", "cifar-10-batches-py")
    unpacked, packed = cifar10(tmp_path / "files", verify=False), cifar10(tmp_path, verify=False)
    assert packed.checksum == unpacked.checksum
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()] == ["files"]
    (tmp_path / "cifar-10-python.tar.gz").write_bytes((tmp_path / "cifar-10-python.tar.gz").read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz can't be read"):
        cifar10(tmp_path, verify=False)


def test_classes_belong_to_superclasses(tmp_path):
    order = write_cifar100(tmp_path)
    source = cifar100(tmp_path, verify=False)
    assert source.y.tolist() == order + order
    assert source.classes[7] == "fine-7"
    assert source.superclasses[19] == "coarse-19"
    assert source.superclass.tolist() == [k // 5 for k in range(100)]
    assert int(source.test.sum()) == 100


def test_a_class_in_two_superclasses_is_refused(tmp_path):
    write_cifar100(tmp_path)
    batch = {b"data": images(100, 1), b"fine_labels": list(range(100)), b"coarse_labels": [0] * 100}
    (tmp_path / "cifar-100-python" / "test").write_bytes(as_python_2_wrote_it(batch))
    with pytest.raises(ValueError, match="100 classes in 195 pairs with superclasses"):
        cifar100(tmp_path, verify=False)


def test_other_files_than_the_published_are_refused(tmp_path):
    write_cifar10(tmp_path)
    with pytest.raises(ValueError, match=f"its MD5 is .*, not {CIFAR10_FILES['data_batch_1']}"):
        cifar10(tmp_path)
    assert set(CIFAR100_FILES) == {"train", "test", "meta"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data_batch_3 can't be read"),
        (b"\x80\x02}q\x00", "data_batch_3 can't be read"),
        (pickle.dumps([1, 2]), "data_batch_3 holds a list, not a dictionary"),
        (pickle.dumps({b"labels": [1]}), "data_batch_3 holds no images"),
        (pickle.dumps({b"data": images(2, 0)[:, :100], b"labels": [1, 2]}, protocol=2), "data_batch_3 holds no images"),
        (
            pickle.dumps({b"data": images(2, 0), b"labels": [1]}, protocol=2),
            "data_batch_3 holds 2 images, but 1 labels",
        ),
        (pickle.dumps({b"data": images(1, 0), b"labels": [11]}, protocol=2), "class codes 0 to 11, but has 10 classes"),
    ],
)
def test_damaged_batches_are_named(tmp_path, content, message):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cifar10(tmp_path, verify=False)


def test_a_missing_batch_is_named(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="has no file test_batch, so CIFAR-10 isn't complete"):
        cifar10(tmp_path, verify=False)


def test_text_of_python_2_is_bytes():
    written_by_hand = b"\x80\x02}U\x06labels]K\x03as."  # {'labels': [3]} with Python 2's short string
    assert read_pickle(written_by_hand, "batch") == {b"labels": [3]}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.bool_])
def test_arrays_come_back_from_every_protocol(protocol, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for kept in (array, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        assert np.array_equal(read_pickle(pickle.dumps({"a": kept}, protocol=protocol), "batch")[b"a"], array)
    read = read_pickle(pickle.dumps({"a": array}, protocol=protocol), "batch")[b"a"]
    assert read.dtype == dtype
    assert np.array_equal(read, array)


class Runs:
    """What a stranger's pickle may hold: a command that is carried out while it's read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_that_run_code_are_refused_and_do_nothing(tmp_path, protocol):
    trace = tmp_path / "trace"
    for command in (Runs(os.mkdir, str(trace)), Runs(eval, f"__import__('os').mkdir({str(trace)!r})")):
        content = pickle.dumps({b"labels": command}, protocol=protocol)
        with pytest.raises(ValueError, match="batch can't be read: it asks for"):
            read_pickle(content, "batch")
        assert not trace.exists()
        pickle.loads(content)  # and this is what it would have done
        trace.rmdir()


@pytest.mark.parametrize(
    "held",
    [
        np.array([print, None], dtype=object),
        Runs(np.load, "file"),
        Runs(np.frombuffer, b"12"),
        Runs(np.dtype, "O"),
        torch.Size([1]),
    ],
)
def test_all_that_is_not_data_is_refused(held):
    with pytest.raises(ValueError, match="batch can't be read"):
        read_pickle(pickle.dumps({b"a": held}, protocol=2), "batch")
