"""The mutation run: what a mutant is, and that a test that would notice it does."""

import ast
import random

import pytest

import mutants


def test_every_mutant_is_another_program():
    population = mutants.population(("compress",))
    assert len({mutant.name for mutant in population}) == len(population) > 100
    for mutant in random.Random(0).sample(population, 50):
        text = (mutants.ROOT / mutant.path).read_bytes()
        assert " ".join(text[mutant.start : mutant.end].decode().split()) == mutant.before
        changed = text[: mutant.start] + mutant.after.encode() + text[mutant.end :]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("α = x - 1  # bytes, not characters", ["x + 1", "2"]),
        ("def f(n: Literal[3] = 4) -> int: ...", ["5"]),
        ("raise ValueError(f'{n - 1}')", []),
        ("a = not b", ["b"]),
        ("a = b if c else d", ["b if not c else d"]),
        ("a = b <= c", ["b < c"]),
        ("a += 1.5", ["a -= 1.5", "3.0"]),
    ],
)
def test_expressions_that_compute_are_changed(text, changed, tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(text)
    assert [mutant.after.strip("()") for mutant in mutants.mutants_of(path)] == changed


def test_an_outcome_is_the_tests_exit_code():
    assert mutants.in_a_child(lambda: 0, 60) == "survived"
    assert mutants.in_a_child(lambda: 1, 60) == "killed"


def forever():
    while True:
        pass


def test_a_mutant_that_never_ends_counts_as_killed():
    assert mutants.in_a_child(forever, 0.2) == "timeout"
    assert mutants.kind_of({"outcome": "timeout", "change": "a"}, {}) == "killed"
    assert mutants.kind_of({"outcome": "survived", "change": "a"}, {"a": "n is even"}) == "equivalent"


def test_specific_tests_come_first_within_the_budget():
    sizes = mutants.Counter({"broad": 900, "narrow": 9, "middle": 90})
    seconds = {"broad": 1.0, "narrow": 1.0, "middle": mutants.BUDGET}
    assert mutants.chosen({"broad", "narrow", "middle", "failed"}, sizes, seconds) == ["narrow"]
    assert mutants.chosen({"broad", "narrow"}, sizes, seconds) == ["narrow", "broad"]
    assert mutants.chosen(set(), sizes, seconds) == []
