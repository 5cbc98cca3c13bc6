"""Runs of the command in their folders: other data, other folders, locks, links, and other people's repositories."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel.core.lock import locked
from archipel.experiments import federation_from, read_config
from archipel.experiments.environment import git_revision

SMALL = ["rounds=1", "encoder.name=mlp", "encoder.options.hidden=[4]", "algorithm.local.steps=2"]


def call(*words, code=0):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def write_clients(folder, seed: int, names=("Lyon", "Nice")) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for name in names:
        np.savez(folder / f"{name}.npz", x=rng.normal(size=(20, 4)), y=np.arange(20) % 2)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A run on a folder of files, named from the folder beside it."""
    write_clients(tmp_path / "data", 0)
    monkeypatch.chdir(tmp_path)
    words = ["run", "digits-fedavg", "data.source=arrays", "data.data_dir=data", *SMALL, "--out", "run"]
    call(*words)
    return words


def test_new_data_in_the_folder_are_noticed(trained, tmp_path) -> None:
    assert "is complete" in call(*trained).stderr
    write_clients(tmp_path / "data", 1)
    for words in (trained, ["evaluate", "run"]):
        told = call(*words, code=2).stderr
        assert "data are not those that the run in run was trained on" in told
        assert "fingerprint" in told
    assert "--fresh" in call(*trained, code=2).stderr
    call(*trained, "--fresh")
    assert "is complete" in call(*trained).stderr


def test_a_run_is_evaluated_from_any_folder(trained, tmp_path, monkeypatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = json.loads(call("evaluate", "../run", "--json").stdout)
    assert found["metrics"] == found["recorded"]


def test_a_complete_run_is_shown_where_its_data_have_gone(trained, tmp_path) -> None:
    (tmp_path / "data").rename(tmp_path / "gone")
    with pytest.warns(UserWarning, match="not compared"):
        assert "is complete" in call(*trained).stderr
    assert "gone" not in call(*trained, "--fresh", code=2).stdout


def test_two_commands_in_one_folder(trained, tmp_path) -> None:
    child = "from pathlib import Path; from archipel.core.lock import locked; import sys\n"
    child += "with locked(Path('run')):\n    print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        assert "Another process is writing to run" in call(*trained, "--fresh", code=2).stderr
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
        other.communicate()
    with locked(tmp_path / "run"):
        pass
    call(*trained)


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "metrics.jsonl", "figures"])
def test_nothing_is_written_through_a_link(name, trained, tmp_path) -> None:
    target = tmp_path / "precious"
    target.mkdir() if name == "figures" else target.write_text("precious")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).symlink_to(target)
    told = call(*trained[:-1], "other", code=2).stderr
    assert "is a symbolic link" in told
    assert not any(target.iterdir()) if name == "figures" else target.read_text() == "precious"


def test_a_foreign_repository_executes_nothing(tmp_path, monkeypatch) -> None:
    write_clients(tmp_path / "data", 0)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    marker = tmp_path / "executed"
    with (tmp_path / ".git" / "config").open("a") as file:
        file.write(f'[core]\n\tfsmonitor = "touch {marker}; false"\n')
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "status"], check=True, capture_output=True)
    assert marker.exists(), "git itself executes it"
    marker.unlink()
    call("run", "digits-fedavg", "data.source=arrays", "data.data_dir=data", *SMALL, "--out", "run")
    call("evaluate", "run")
    assert not marker.exists()


def test_the_revision_is_read_as_text(tmp_path) -> None:
    assert git_revision(tmp_path) is None
    commit, inside = "0123456789abcdef0123456789abcdef01234567", tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert git_revision(inside) is None  # nothing was committed
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{commit} refs/heads/main\n")
    assert git_revision(inside) == commit
    (git / "refs" / "heads" / "main").write_text(commit[::-1] + "\n")
    assert git_revision(inside) == commit[::-1]
    (git / "HEAD").write_text(commit)
    assert git_revision(inside) == commit
    (tmp_path / "secret").write_text(commit)
    for damaged in ("ref: refs/../../secret", "ref: /etc/passwd", "x" * 10**6, "ref: refs/heads/main\nmore", ""):
        (git / "HEAD").write_text(damaged)
        assert git_revision(inside) is None


def test_escape_sequences_in_names_do_not_reach_the_terminal(tmp_path, monkeypatch) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07Lyon\u202e\x9b31m"
    write_clients(tmp_path / "data", 0, (evil, "Nice"))
    monkeypatch.chdir(tmp_path)
    data = ["data.source=arrays", "data.data_dir=data"]
    np.save(tmp_path / "\x1b[31mquery.npy", np.zeros((1, 4)))
    said = [
        call("run", "digits-fedavg", *data, *SMALL, "--out", "run"),
        call("evaluate", "run"),
        call("evaluate", "run", "--json"),
        call("data", "show", "digits-fedavg", *data),
        call("data", "show", "digits-fedavg", *data, "--markdown"),
        call("route", "run", tmp_path / "\x1b[31mquery.npy", "--client", evil),
        call("route", "run", tmp_path / "\x1b[31mquery.npy", "--client", "\x1b[31mnobody", code=2),
        call("run", "\x1b[31mnothing", code=2),
        call("em", "data", "--components", 1),
    ]
    for result in said:
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(result.stdout + result.stderr)
    assert "Lyon" in said[0].stdout


@pytest.mark.parametrize("method", ["fedavgft", "fedbabu"])
def test_a_client_is_asked_by_its_adapted_model(method, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name, sign in (("Lyon", 1), ("Nice", -1)):  # opposite rules, so that the shared model serves one client badly
        x = rng.normal(size=(200, 4))
        np.savez(tmp_path / "data" / f"{name}.npz", x=x, y=(sign * x[:, 0] > 0).astype(int))
    data = ["data.source=arrays", "data.data_dir=data"]
    tuning = ["rounds=2", "algorithm.tuning.epochs=20", "algorithm.tuning.lr=0.1", *SMALL[1:3]]
    call("run", "digits-fedavg", *data, f"algorithm.name={method}", *tuning, "--out", "run")
    rows = {row["client"]: row for row in json.loads(call("evaluate", "run", "--json").stdout)["clients"]}
    federation = federation_from(read_config("run/config.yaml"))
    shares = []
    for client in federation.clients:
        np.save("queries.npy", client.test["x"].numpy())
        told = call("route", "run", "queries.npy", "--client", client.name, "--json").stdout.splitlines()
        right = [json.loads(line)["prediction"] == str(int(y)) for line, y in zip(told, client.test["y"], strict=True)]
        assert np.mean(right) == pytest.approx(rows[client.name]["accuracy"])
        shares.append(np.mean(right))
    assert sum(shares) > 1.3, "one model for both is right on one half of both together, a sum of about 1"
