"""The command `archipel data`: what is there, and whether it is what it should be."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from archipel.cli import data as data_command
from archipel.cli.data import app


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Tables in one line each, whatever terminal the tests were started in."""
    monkeypatch.setattr(data_command, "out", Console(width=300))


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_list_shows_every_source_and_whether_it_is_there(tmp_path, monkeypatch):
    monkeypatch.delenv("ARCHIPEL_DATA", raising=False)
    (tmp_path / "crossbill.csv").touch()
    done = run("list", "--data-dir", tmp_path)
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.output.splitlines()}
    assert lines["digits"].rstrip().endswith("built in")
    assert lines["crossbill"].rstrip().endswith("yes")
    assert lines["cifar100"].rstrip().endswith("no")
    assert "200 writers" in lines["femnist"]
    assert "70,903 images" in lines["femnist"]
    assert "CC BY-NC 4.0" in lines["fed-isic2019"]


def test_check_counts_what_was_loaded():
    done = run("check", "wine")
    assert done.exit_code == 0
    assert done.output.splitlines()[1].split()[:5] == ["wine", "178", "13", "float32", "3"]


def test_check_refuses_other_content(tmp_path):
    (tmp_path / "crossbill.csv").write_text("id,ele\n1,450\n")
    done = run("check", "crossbill", "--data-dir", tmp_path)
    assert isinstance(done.exception, ValueError)
    assert "crossbill.csv, line 2 has no forest" in str(done.exception)


def test_check_says_how_to_get_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("ARCHIPEL_DATA", raising=False)
    done = run("check", "cifar10", "--data-dir", tmp_path)
    assert isinstance(done.exception, FileNotFoundError)
    assert "Get cifar-10-python.tar.gz" in str(done.exception)
    assert isinstance(run("check", "cifar").exception, ValueError)
