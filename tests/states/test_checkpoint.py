"""Checkpoints: two of them, torn, damaged, exchanged or of another version."""

import json
import shutil
from pathlib import Path

import pytest
from torch import nn

from archipel import SGD, FedAvg, Run, classification, fit
from archipel.core.trees import flatten
from archipel.states.checkpoint import Checkpoint

FILES = ("checkpoint.json", "server.safetensors", "clients.safetensors")


def fedavg(federation, lr=0.1):
    local = SGD(lr=lr, epochs=1, batch=4, momentum=0.5, keep_momentum=True)
    return FedAvg(classification(nn.Linear(3, 4), federation), local)


def assert_same(one, other):
    for a, b in ((one.server, other.server), *zip(one.clients, other.clients, strict=True)):
        a, b = flatten(a), flatten(b)
        assert a.keys() == b.keys()
        assert all((a[name] == b[name]).all() for name in a)


@pytest.mark.parametrize("torn", ["writing", "between", "after", "twice"])
def test_a_checkpoint_torn_at_any_moment_is_recovered(uneven, tmp_path, torn, monkeypatch):
    algorithm = fedavg(uneven)
    fit(algorithm, uneven, rounds=4, folder=tmp_path, until=2)
    place = tmp_path / "checkpoint"
    if torn == "writing":
        (tmp_path / "checkpoint.new").mkdir()
        (tmp_path / "checkpoint.new" / "server.safetensors").write_bytes(b"half of it")
    else:
        # the moment between the two renames: the old one is moved away, the new one not yet in place
        place.rename(tmp_path / "checkpoint.old")
    if torn == "after":
        fit(algorithm, uneven, rounds=4, folder=tmp_path, until=3)
        assert (tmp_path / "checkpoint.old").exists()
    if torn == "twice":
        # and killed at the same place in the next save
        rename = Path.rename

        def killed(self, target):
            if self.name == "checkpoint.new":
                raise SystemExit
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with pytest.raises(SystemExit):
                fit(algorithm, uneven, rounds=4, folder=tmp_path, until=3)
    assert Checkpoint.load(tmp_path) is not None
    resumed = fit(algorithm, uneven, rounds=4, folder=tmp_path)
    assert_same(resumed, fit(algorithm, uneven, rounds=4))


@pytest.mark.parametrize("version", [2, 4, 99])
def test_a_checkpoint_of_another_format_is_refused(uneven, tmp_path, version):
    fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path)
    path = tmp_path / "checkpoint" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": version}))
    with pytest.raises(ValueError, match=rf"has format {version}; this version of archipel reads format 3. Train"):
        Checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "left"),
    [
        ("checkpoint.json", b""),
        ("checkpoint.json", b'{"format": 3}'),
        ("checkpoint.json", b"[]"),
        ("checkpoint.json", b"["),
        ("checkpoint.json", b"[" * 100_000),
        ("checkpoint.json", b"\xff\xfe"),
        ("checkpoint.json", None),
        ("server.safetensors", b""),
        ("server.safetensors", b"\x20" * 40),
        ("server.safetensors", None),
        ("clients.safetensors", b"\x02\0\0\0\0\0\0\0{}"),
        ("clients.safetensors", b"\x02\0\0\0\0\0\0\0[]"),
        ("clients.safetensors", b"\x02\0\0\0\0\0\0\0 5"),
        ("clients.safetensors", b"\xff" * 40),
        ("clients.safetensors", b""),
        ("clients.safetensors", None),
    ],
)
def test_a_damaged_checkpoint_is_told_by_its_name(uneven, tmp_path, file, left):
    fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path)
    path = tmp_path / "checkpoint" / file
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(ValueError, match=r"checkpoint is damaged: .*remove the folder to start anew"):
        fit(fedavg(uneven), uneven, rounds=2, folder=tmp_path)


@pytest.fixture
def twice(uneven, tmp_path):
    """A folder with the checkpoints of rounds 2 and 1."""
    fit(fedavg(uneven), uneven, rounds=3, folder=tmp_path, checkpoint_every=1, until=2)
    assert json.loads((tmp_path / "checkpoint.old" / "checkpoint.json").read_text())["round"] == 1
    return tmp_path


@pytest.mark.parametrize("file", FILES)
def test_any_flipped_bit_is_noticed_and_the_previous_checkpoint_is_used(twice, uneven, file, caplog):
    path = twice / "checkpoint" / file
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        for bit in (0, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            if b'"format": 3' not in damaged and file == "checkpoint.json":
                continue  # another version is refused, see above
            caplog.clear()
            assert Checkpoint.load(twice).round == 1
            assert "checkpoint is damaged: " in caplog.text
            assert "The previous checkpoint is used, of round 1." in caplog.text
    path.write_bytes(whole)
    assert Checkpoint.load(twice).round == 2


@pytest.mark.parametrize("file", ["server.safetensors", "clients.safetensors"])
def test_a_file_of_another_run_or_round_is_noticed(twice, uneven, file, caplog):
    path = twice / "checkpoint" / file
    shutil.copy(twice / "checkpoint.old" / file, path)
    assert Checkpoint.load(twice).round == 1
    assert "or belongs to another checkpoint" in caplog.text
    resumed = fit(fedavg(uneven), uneven, rounds=3, folder=twice)
    assert_same(resumed, fit(fedavg(uneven), uneven, rounds=3))


def signed(checkpoint, folder, **changes):
    """Write a checkpoint whose checksums are right and whose contents contradict each other."""
    facts = {**checkpoint.facts, **changes.pop("facts", {})}
    Checkpoint(changes.get("round", checkpoint.round), checkpoint.server, checkpoint.clients, facts).save(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": -1}, "its round is -1"),
        ({"round": 10**9}, "does not have the rounds 1 to 1000000000"),
        ({"round": True}, "its round is True"),
        ({"round": "2"}, "its round is '2'"),
        ({"facts": {"history": [{"round": 2}, {"round": 1}]}}, "does not have the rounds 1 to 2"),
        ({"facts": {"serving": {"names": ["a"], "sizes": [9]}}}, "its clients are not those that its states are of"),
        ({"facts": {"history": 5}}, "is damaged"),
    ],
)
def test_contents_that_contradict_each_other_are_refused(twice, changes, message):
    checkpoint = Checkpoint.load(twice)
    shutil.rmtree(twice / "checkpoint.old")
    signed(checkpoint, twice, **changes)
    shutil.rmtree(twice / "checkpoint.old")
    with pytest.raises(ValueError, match=message):
        Checkpoint.load(twice)


def test_two_damaged_checkpoints_are_both_named(twice):
    for name in ("checkpoint", "checkpoint.old"):
        (twice / name / "server.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"checkpoint is damaged: .*checkpoint\.old is damaged: .*from a copy"):
        Checkpoint.load(twice)


def test_a_save_that_was_killed_after_a_fallback_loses_nothing(twice, monkeypatch):
    # the latest checkpoint is damaged; the next save puts it in the place of the sound one, and is killed right then
    whole = Checkpoint.load(twice)
    (twice / "checkpoint" / FILES[1]).write_bytes(b"damaged")
    rename = Path.rename

    def killed(self, target):
        if self.name == "checkpoint.new":
            raise SystemExit
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(SystemExit):
        whole.save(twice)
    back = Checkpoint.load(twice)
    assert back.round == whole.round
    assert_same(back, whole)


def test_a_run_that_starts_anew_leaves_nothing_of_the_old_one(twice, uneven):
    other = fedavg(uneven, lr=0.2)
    fit(other, uneven, rounds=1, folder=twice, resume=False)
    assert not (twice / "checkpoint.old").exists()
    (twice / "checkpoint" / "server.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        Run.read(twice, other)


def test_a_checkpoint_is_as_private_as_its_folder(uneven, tmp_path):
    tmp_path.chmod(0o700)
    fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path)
    assert (tmp_path / "checkpoint").stat().st_mode & 0o777 == 0o700


def test_files_are_on_the_disk_before_they_take_their_place(uneven, tmp_path, monkeypatch):
    done = []
    rename = Path.rename
    monkeypatch.setattr("archipel.states.checkpoint.os.fsync", lambda descriptor: done.append("fsync"))
    monkeypatch.setattr(Path, "rename", lambda self, to: done.append(self.name) or rename(self, to))
    fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path)
    assert done == ["fsync"] * 4 + ["checkpoint.new", "fsync"]
