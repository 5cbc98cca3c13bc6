"""Federations in folders: the same after, nothing half-written, and nothing run on loading."""

import json
import os
import pickle
import stat
import struct
from hashlib import sha256

import pytest
import torch

from archipel import Federation
from archipel.data import federation_folder
from archipel.data.dual_heterogeneity import dual_heterogeneity
from archipel.data.shifts.compose import compose
from archipel.data.shifts.feature_shifts import Missing
from archipel.data.shifts.label_shifts import NoisyLabels
from archipel.data.sources.scikit import digits
from archipel.learning.quadratic import quadratic_federation


@pytest.fixture(scope="module")
def federation() -> Federation:
    made = dual_heterogeneity(digits(), clients=3, validation=0.1)
    return compose(made, clients=[[NoisyLabels(0.1, 10)], [], []])


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def test_what_is_loaded_is_what_was_saved(federation, tmp_path):
    federation.save(tmp_path / "lab")
    again = Federation.load(tmp_path / "lab", verify=True)
    assert again.fingerprint == federation.fingerprint
    assert (again.name, again.inputs, again.classes) == (federation.name, federation.inputs, federation.classes)
    assert equal(again.truth, federation.truth)
    for one, other in zip(federation.clients, again.clients, strict=True):
        assert one.name == other.name
        assert equal(one.splits, other.splits)
        assert equal(one.truth, other.truth)


def test_regressions_views_and_holes(tmp_path):
    quadratics = quadratic_federation(torch.eye(2).expand(3, 2, 2), torch.zeros(3, 2), sizes=[1, 2, 3])
    quadratics.save(tmp_path / "q")
    assert Federation.load(tmp_path / "q").fingerprint == quadratics.fingerprint
    x = torch.randn(20, 3)
    views = Federation.from_arrays([(x, torch.arange(20) % 2), (x, torch.arange(20) % 2)])
    holes = compose(views, clients=[[Missing(0.5)], []])
    holes.save(tmp_path / "h")
    assert Federation.load(tmp_path / "h", verify=True).inputs == holes.inputs


def test_arrays_stay_in_their_files(federation, tmp_path):
    federation.save(tmp_path / "lab")
    again = Federation.load(tmp_path / "lab")
    with open("/proc/self/maps") as maps:
        mapped = maps.read()
    assert str(tmp_path / "lab" / "clients" / "000002.safetensors") in mapped
    federation.save(tmp_path / "lab")  # replaced while it's in use
    assert again.fingerprint == federation.fingerprint


def test_the_fingerprint_is_of_little_endian_bytes():
    # Put together from Python's numbers, as any machine can.
    made = Federation.from_arrays([([[1.5, -2.0]] * 2, [0, 1])], test=0.0, names=["Ölberg"])
    y = made.clients[0].train["y"].tolist()
    parts = [
        ("train/x/torch.float32/(2, 2)", struct.pack("<4f", 1.5, -2.0, 1.5, -2.0)),
        ("train/y/torch.int64/(2,)", struct.pack("<2q", *y)),
        ("test/x/torch.float32/(0, 2)", b""),
        ("test/y/torch.int64/(0,)", b""),
    ]
    content = b"".join(f"Ölberg/{header}".encode() + values for header, values in parts)
    assert made.fingerprint == sha256(content).hexdigest()


def test_a_clients_file_holds_no_truth(federation, tmp_path):
    federation.save(tmp_path / "lab")
    header = (tmp_path / "lab" / "clients" / "000000.safetensors").read_bytes()[:4000]
    assert b"train/x" in header
    assert b"label" not in header
    assert b"component" not in header


def test_an_interruption_leaves_what_was_there(federation, tmp_path, monkeypatch):
    federation.save(tmp_path / "lab")
    before = Federation.load(tmp_path / "lab", verify=True).fingerprint

    def broken(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(federation_folder.json, "dumps", broken)
    with pytest.raises(KeyboardInterrupt):
        federation.hold_out(1)[0].save(tmp_path / "lab")
    monkeypatch.undo()
    assert Federation.load(tmp_path / "lab", verify=True).fingerprint == before
    assert os.listdir(tmp_path) == ["lab"]
    (tmp_path / "lab").rename(tmp_path / ".lab.old")  # as if stopped between two renames
    assert Federation.load(tmp_path / "lab", verify=True).fingerprint == before
    federation.save(tmp_path / "lab")
    assert os.listdir(tmp_path) == ["lab"]


def test_other_folders_are_left_alone(federation, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="holds something that isn't a federation"):
        federation.save(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(FileNotFoundError, match="holds no federation"):
        Federation.load(tmp_path)


def test_damage_is_named(federation, tmp_path):
    folder = tmp_path / "lab"

    def fresh():
        federation.save(folder)
        return folder / "clients" / "000001.safetensors"

    file = fresh()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"000001\.safetensors is missing or damaged"):
        Federation.load(folder)
    fresh().unlink()
    with pytest.raises(ValueError, match=r"000001\.safetensors is missing or damaged"):
        Federation.load(folder)
    fresh().write_bytes(pickle.dumps(print))
    with pytest.raises(ValueError, match=r"000001\.safetensors is missing or damaged"):
        Federation.load(folder)
    file = fresh()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="was changed: its data have the fingerprint"):
        Federation.load(folder, verify=True)
    fresh()
    about = json.loads((folder / "federation.json").read_text())
    for broken, message in [
        ("{", "JSONDecodeError"),
        (json.dumps({}), "damaged"),
        (json.dumps(about | {"format": 9}), "format 9; this version of archipel reads 1"),
        (json.dumps(about | {"clients": 3}), "damaged"),
    ]:
        (folder / "federation.json").write_text(broken)
        with pytest.raises(ValueError, match=message):
            Federation.load(folder)


def test_truth_that_cannot_be_saved_is_named(federation, tmp_path):
    odd = Federation("odd", federation.clients, federation.inputs, federation.classes, {"how": [print] * 3})
    with pytest.raises(TypeError, match="truth/how/0 is <built-in function print>"):
        odd.save(tmp_path / "odd")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o755), (0o077, 0o700), (0o027, 0o750)])
def test_folders_are_as_open_as_the_mask_says_or_as_they_were(federation, tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        federation.save(tmp_path / "lab")
        assert stat.S_IMODE((tmp_path / "lab").stat().st_mode) == mode
        (tmp_path / "lab").chmod(0o710)
        federation.save(tmp_path / "lab")
        assert stat.S_IMODE((tmp_path / "lab").stat().st_mode) == 0o710
    finally:
        os.umask(before)
