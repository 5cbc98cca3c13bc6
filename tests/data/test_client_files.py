"""A user's own files, one for each client."""

import sys

import numpy as np
import pytest
import torch

from archipel.data.natural import natural
from archipel.data.sources.folders import client_files


def write(folder, **clients):
    folder.mkdir(exist_ok=True)
    for name, (x, y) in clients.items():
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return folder


def table(n, start=0):
    return np.arange(start, start + 3 * n, dtype=np.float64).reshape(n, 3)


def test_one_npz_a_client(tmp_path):
    folder = write(tmp_path / "sites", Nice=(table(4), ["a", "b", "a", "b"]), Lyon=(table(2, 100), ["b", "c"]))
    source = client_files(folder)
    assert source.name == "sites"
    assert source.client_names == ("Lyon", "Nice")
    assert source.client.tolist() == [0, 0, 1, 1, 1, 1]
    assert source.classes == ("a", "b", "c")
    assert source.y.tolist() == [1, 2, 0, 1, 0, 1]
    assert np.array_equal(source.x.numpy(), np.concatenate([table(2, 100), table(4)]))
    assert source.kind == "table"
    assert natural(source).sizes.tolist() == [1, 3]


def test_images_and_targets_come_from_npz(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(4, 5, 6, 3), dtype=np.uint8)
    source = client_files(write(tmp_path / "images", one=(images, rng.normal(size=4))))
    assert source.kind == "image"
    assert torch.equal(source.x, torch.from_numpy(images.transpose(0, 3, 1, 2)))
    assert source.classes == ()
    assert source.y.dtype == torch.float32
    series = client_files(write(tmp_path / "series", one=(rng.normal(size=(4, 9, 2)), [0, 1, 0, 1])), kind="series")
    assert (series.kind, series.x.shape) == ("series", (4, 9, 2))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"one": (table(2), [0, 1]), "two": (table(2)[:, :2], [0, 1])}, r"two.npz: x is float64 \(2, 2\)"),
        ({"one": (table(2), [0, 1]), "two": (table(2), [0, 1, 1])}, "two.npz: x is .* with 3 labels"),
        ({"one": (np.full((2, 3), np.nan), [0, 1])}, "one.npz: x holds NaN"),
        ({"one": (np.array([["a"], ["b"]]), [0, 1])}, "one.npz: x holds <U1 values; numbers are needed"),
        ({"one": (table(2), [0, 1]), "two": (table(2), ["a", "b"])}, "client 'two': y holds text"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, clients, message):
    with pytest.raises(ValueError, match=message):
        client_files(write(tmp_path, **clients))


def test_damaged_and_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        client_files(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds no .npz, .npy, .csv, .tsv or .parquet files"):
        client_files(tmp_path)
    write(tmp_path, one=(table(200), np.arange(200) % 2))
    whole = (tmp_path / "one.npz").read_bytes()
    (tmp_path / "one.npz").write_bytes(whole[:500])
    with pytest.raises(ValueError, match=r"one.npz can't be read"):
        client_files(tmp_path)
    np.savez(tmp_path / "one.npz", x=np.array([{"a": 1}], dtype=object), y=[1])
    with pytest.raises(ValueError, match=r"one.npz can't be read: it holds pickled Python objects"):
        client_files(tmp_path)
    (tmp_path / "one.csv").touch()
    with pytest.raises(ValueError, match="two files of a client 'one'"):
        client_files(tmp_path)


@pytest.fixture
def parquet(tmp_path):
    """Write a table as one client's .parquet file."""
    pyarrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def add(name, **columns):
        files.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
        return tmp_path

    return add


def test_one_parquet_file_a_client(parquet):
    parquet("Nice", age=[60, 70], chol=[200.5, 180.0], sick=["no", "yes"])
    folder = parquet("Lyon", age=[50], chol=[230.0], sick=["yes"])
    source = client_files(folder, label="sick")
    assert source.features == ("age", "chol")
    assert source.x.tolist() == [[50, 230], [60, 200.5], [70, 180]]
    assert source.y.tolist() == [1, 0, 1]
    assert source.classes == ("no", "yes")
    with pytest.raises(ValueError, match=r"Lyon.parquet has no label column 'y'"):
        client_files(folder)
    with pytest.raises(ValueError, match="sick is 'yes', which isn't a number"):
        client_files(folder, label="age")
    parquet("Paris", age=[50], bmi=[23.0], sick=["yes"])
    with pytest.raises(ValueError, match=r"Paris.parquet lacks chol and also has bmi"):
        client_files(folder, label="sick")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "one.parquet").touch()
    with pytest.raises(ImportError, match=r"pip install archipel\[parquet\]"):
        client_files(tmp_path)
