"""NumPy's files: what's read, and sentences for damage, objects, lying headers and bombs, in little memory."""

import gzip
import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from archipel.data.files import guard, gzipped
from archipel.data.files.arrays import read_npy, read_npz
from archipel.data.files.clients import client_files_in, read_examples
from archipel.data.files.pickles import read_pickle
from archipel.data.sources.idx import read_idx


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1", "<U3", "S3", "?", ">i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_wrote_is_read(tmp_path, dtype, order):
    x = np.arange(6).reshape(2, 3).astype(dtype, order=order)
    np.save(tmp_path / "a.npy", x)
    np.savez_compressed(tmp_path / "a.npz", x=x, y=x[0])
    for found in (read_npy(tmp_path / "a.npy"), read_npz(tmp_path / "a.npz", ("x",))["x"]):
        assert found.dtype == x.dtype
        assert np.array_equal(found, x)
    assert list(read_npz(tmp_path / "a.npz", ("x",), also=("y", "z"))) == ["x", "y"]


def header(shape, dtype="<f8"):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": dtype, "fortran_order": False, "shape": shape})
    return content.getvalue()


@pytest.mark.parametrize("shape", [(10**6, 10**6), (3,), (-1,), (2**62, 8), (1, 1)])
def test_headers_that_lie_are_refused_before_memory_is_taken(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(header(shape) + bytes(16))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header(shape) + bytes(16))
    for read in (lambda: read_npy(tmp_path / "a.npy"), lambda: read_npz(tmp_path / "a.npz", ("x",))):
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"a\.np[yz] can't be read: it claims float64 of shape"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_objects_are_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("it was run",))

    np.save(tmp_path / "a.npy", np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(
        ValueError, match=r"a\.npy can't be read: it holds pickled Python objects, which could run code"
    ):
        read_npy(tmp_path / "a.npy")


def test_archives_that_unpack_to_the_memorys_size_are_refused_at_once(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as x:
        x.write(header((300 << 20,), "|u1"))
        for _ in range(300):
            x.write(bytes(1 << 20))
    assert (tmp_path / "a.npz").stat().st_size < 1 << 20
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"a\.npz can't be read: it holds .* bytes and unpacks to 314,5"):
        read_npz(tmp_path / "a.npz", ("x",))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_gzip_bombs_are_refused_before_they_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "SMALL", 1 << 20)
    assert gzipped.at_most(10) == 1 << 20
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(200 << 20)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"a\.gz can't be read: it holds .* bytes and unpacks to .* over 100 times"):
        read_idx(tmp_path / "a.gz")
    # What may be unpacked, 100 times the file, grown in pieces of 16 MiB
    assert tracemalloc.get_traced_memory()[1] < 2.5 * 100 * (tmp_path / "a.gz").stat().st_size + (64 << 20)
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["npy", "npz", "idx", "gz"])
def test_flipped_bits_and_cuts_never_give_a_traceback(tmp_path, kind):
    x = np.random.default_rng(0).integers(256, size=(20, 5), dtype=np.uint8)
    file = tmp_path / f"a.{kind}"
    idx = struct.pack(">4B2I", 0, 0, 8, 2, 20, 5) + x.tobytes()
    {
        "npy": lambda: np.save(file, x),
        "npz": lambda: np.savez_compressed(file, x=x),
        "idx": lambda: file.write_bytes(idx),
        "gz": lambda: file.write_bytes(gzip.compress(idx)),
    }[kind]()
    whole = file.read_bytes()
    refused = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged if seed % 2 else whole[: rng.integers(len(whole))])
        try:
            read_idx(file) if kind in ("idx", "gz") else read_examples(file)
        except ValueError as error:
            refused += str(error).startswith(str(file))
        else:
            assert seed % 2  # a flipped bit of the values of a file without checksums can't be told
    assert refused >= 60  # all the cuts


def test_pickles_that_ask_for_memory_are_refused():
    bomb = b"\x80\x02}" + b"r" + (2**31 - 1).to_bytes(4, "little") + b"."  # LONG_BINPUT at a far place
    tracemalloc.start()
    with pytest.raises(ValueError, match="batch can't be read: it asks for memory that it doesn't use"):
        read_pickle(bomb, "batch")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    for protocol in range(6):
        content = pickle.dumps({"labels": list(range(300)), "names": ["a", "b"] * 200}, protocol)
        assert read_pickle(content, "batch")[b"labels"] == list(range(300))


def test_folders_of_clients_are_read_in_capitals_too(tmp_path):
    np.savez(tmp_path / "Nice.npz", x=np.zeros((2, 3)), y=[0, 1])
    (tmp_path / "Nice.npz").rename(tmp_path / "Nice.NPZ")
    (tmp_path / ".hidden.npz").touch()
    files = client_files_in(tmp_path)
    assert list(files) == ["Nice"]
    assert read_examples(files["Nice"], "y").y.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"Nice\.NPZ can't be read: it has no array label, but x, y"):
        read_examples(files["Nice"], "label")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        client_files_in(tmp_path / "nowhere")
