"""Results name the revision that made them, and scripts refuse to begin on a changed tree."""

import json
import sys

import pytest

import results

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def at(monkeypatch):
    """Says what git says, and what the command line is."""

    def be(commit, *words):
        monkeypatch.setattr(results, "provenance", lambda: {"git": commit, "date": "2026-12-01"})
        monkeypatch.setattr(sys, "argv", ["benchmarks/em.py", *words])

    return be


def test_a_changed_tree_is_refused_unless_that_is_asked_for(at, capsys):
    for commit, why in ((f"{COMMIT}+changes", "src, benchmarks or the pinned versions are changed"), (None, "no git")):
        at(commit)
        with pytest.raises(SystemExit) as ended:
            results.parsed(results.parser("text"))
        assert ended.value.code == 2
        assert why in capsys.readouterr().err
        at(commit, "--dirty")
        assert results.parsed(results.parser("text")).dirty
    at(COMMIT)
    assert not results.parsed(results.parser("text")).dirty


def test_a_result_holds_its_command_and_revision(at, tmp_path):
    at(COMMIT, "--seeds", "2")
    results.write(tmp_path / "docs/a.json", {"answer": 42})
    written = json.loads((tmp_path / "docs/a.json").read_text())
    assert written["answer"] == 42
    assert written["about"]["command"] == "python benchmarks/em.py --seeds 2"
    assert written["about"]["git"] == COMMIT
    assert written["about"]["seconds"] >= 0
