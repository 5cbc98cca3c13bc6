"""Configurations that somebody broke, on purpose or not: each gives sentences, soon, and short ones."""

import pytest
import yaml

from archipel.experiments import read_config, to_yaml
from archipel.experiments.sections import CompressorSection
from archipel.experiments.yaml_text import parse

HEAD = "rounds: 1\ndata: {source: digits}\n"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        pytest.param("[" * 500 + "]" * 500, "deeper than 32", id="nested lists"),
        pytest.param("{a: " * 500 + "1" + "}" * 500, "deeper than 32", id="nested sections"),
        pytest.param("- " * 500 + "1", "deeper than 32", id="nested blocks"),
        pytest.param("a: !!timestamp 99", "the tag 'tag:yaml.org,2002:timestamp' is not allowed", id="timestamp"),
        pytest.param("a: !!int ''", "the tag", id="int"),
        pytest.param("a: !!bool maybe", "the tag", id="bool"),
        pytest.param("a: !!python/object/apply:os.system [ls]", "the tag", id="python"),
        pytest.param("a: !!binary x", "the tag", id="binary"),
        pytest.param("!!set {a, b}", "the tag", id="set"),
        pytest.param("a: 0x_", "invalid literal for int", id="no digits"),
        pytest.param(f"a: {'9' * 5000}", "4300 digits", id="a long number"),
        pytest.param("a: 2026-99-99\n" + HEAD, "a: there is no such key", id="dates are text"),
        pytest.param(BOMB, "more than 10,000 values", id="aliases"),
        pytest.param(MERGE_BOMB, "more than 10,000 values", id="merge keys"),
        pytest.param("a: &a [*a]", "an alias names a section that it lies in", id="a circle"),
        pytest.param("a: &a {b: *a}", "an alias names a section that it lies in", id="a circle of sections"),
        pytest.param("<<: 3", "mapping", id="merging a number"),
        pytest.param("? [a, b]\n: 1", "a key is not a word", id="a list as key"),
        pytest.param("? {a: b}\n: 1", "a key is not a word", id="a section as key"),
        pytest.param("1: 2\n" + HEAD, "keys are words", id="a number as key"),
        pytest.param("~: 2\n" + HEAD, "keys are words", id="nothing as key"),
        pytest.param("a: 1\na: 2", "the key 'a' stands twice", id="twice"),
        pytest.param("a: *nowhere", "undefined alias", id="an alias of nothing"),
        pytest.param("a: \x00", "special characters are not allowed", id="a zero byte"),
        pytest.param("a: 1\n---\nb: 2", "another document", id="two documents"),
        pytest.param("", "it holds NoneType", id="empty"),
        pytest.param("&a", "it holds", id="an anchor"),
        pytest.param("".join(f"key{i}: {i}\n" for i in range(2_000)), "and 1,9", id="2,000 keys"),
        pytest.param("".join(f"key{i}: {i}\n" for i in range(20_000)), "more than 10,000 values", id="20,000 keys"),
        pytest.param("x: " + "y" * 900_000, "there is no such key", id="a long value"),
        pytest.param("x" * 900_000 + ": 1\n", "malformed", id="a long key"),
        pytest.param("# comment\n" * 5_000_000, "larger than 1 MB", id="50 MB of comments"),
        pytest.param(
            HEAD + "algorithm: {name: ditto, inner: {name: xyz}}", "algorithm.inner.name: is 'xyz'", id="inner"
        ),
        pytest.param(
            HEAD + "algorithm: {name: ditto, inner: {name: fedspm}}", "algorithm.inner.name: is 'fedspm'", id="inner"
        ),
        pytest.param(HEAD + "algorithm: {name: ditto, inner: {}}", "algorithm.inner.name: is missing", id="inner"),
        pytest.param(HEAD + "algorithm: {name: ditto, inner: 3}", "algorithm.inner: is a section", id="inner"),
        pytest.param(HEAD + "algorithm: {name: [fedavg]}", "algorithm.name: is", id="a list as name"),
        pytest.param(HEAD + "algorithm: {name: {a: b}}", "algorithm.name: is", id="a section as name"),
        pytest.param(HEAD + "algorithm: {name: fedavg, local: {lr: .nan}}", "algorithm.local", id="nan"),
        pytest.param(HEAD + "algorithm: {name: fedavg, local: {lr: .inf}}", "algorithm.local", id="inf"),
    ],
)
def test_a_file_that_was_broken(content: str, hint: str, tmp_path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(content)
    with pytest.raises(ValueError, match="broken") as caught:
        read_config(str(file))
    told = str(caught.value)
    if hint != "malformed":
        assert hint in told
    assert len(told) < 5000


def test_bytes_that_are_no_text(tmp_path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(b"\xff\xfe\x00rounds")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_config(str(file))


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("rounds=" + "9" * 5000, "can't be read as YAML"),
        ("seed=" + "9" * 400, "seed: should be"),
        ("algorithm.local.epochs=1000000000000", "algorithm.local.epochs: is at most 1,000,000"),
        ("algorithm.local.steps=1000000000000", "algorithm.local.steps: is at most 1,000,000"),
        ("rounds=1000000000000", "rounds: is at most 1,000,000; given 1000000000000"),
        ("data.clients=1000000000000", "data.clients: is at most"),
        ("encoder.features=1000000000000", "encoder.features: is at most"),
        ("name=" + "x" * 5000, "name:"),
        ("x" * 5000 + "=3", "there is no such key"),
        ("algorithm.name=!!bool maybe", "the tag"),
        ("data.options=" + "[" * 200, "deeper"),
        ("algorithm.local.lr=1e308", "algorithm.local.lr: is at most 1e+30"),
        ("encoder.options.channels=[4, 1000000000000]", "encoder.options: is at most"),
        ("data.partition={name: dirichlet, alpha: 1e300}", "alpha is at most 1e+30"),
        ("data.partition={name: pathological, classes: 1000000000000}", "classes is at most 1,000,000"),
        ("data.shifts=[{name: rotated, degrees: 1e300}]", "degrees is at most 1e+30"),
        ("rounds=yes", "rounds: should be a valid integer; given 'yes'"),
        ("algorithm.local.nesterov=yes", "algorithm.local.nesterov: should be a valid boolean; given 'yes'"),
    ],
)
def test_a_setting_that_was_broken(setting: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"run|value") as caught:
        read_config("digits-fedavg", [setting])
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_words_are_words_and_numbers_numbers() -> None:
    found = parse("{a: no, b: yes, c: on, d: true, e: 1e-3, f: 2026-01-01, g: ~, h: 0x10, i: .5}")
    truth = {"a": "no", "b": "yes", "c": "on", "d": True, "e": 1e-3, "f": "2026-01-01", "g": None, "h": 16, "i": 0.5}
    assert found == truth


def test_classes_may_be_called_yes_and_no(tmp_path) -> None:
    settings = ["data.source=arrays", f"data.data_dir={tmp_path}", "data.classes=[no, yes]"]
    config = read_config("digits-fedavg", settings)
    assert config.data.classes == ["no", "yes"]
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert read_config(str(tmp_path / "again.yaml")) == config
    assert yaml.safe_load(to_yaml(config)) == parse(to_yaml(config))


def test_a_switch_of_a_presets_algorithm_tells_what_else_changes() -> None:
    with pytest.warns(UserWarning, match=r"ditto has no local, .*left out; algorithm.personal keep"):
        read_config("heart-fedavg", ["algorithm.name=ditto"])
    with pytest.warns(UserWarning, match=r"sets nothing for algorithm.router, algorithm.routing of fedspm"):
        read_config("digits-fedavg", ["algorithm.name=fedspm"])


def test_a_fault_of_several_keys_names_them_itself():
    with pytest.raises(ValueError, match=r"that can be made:\n  refit: end fits the tilts"):
        read_config("heart-fedavg", ["refit=end"])


def test_options_of_compressors_have_limits_too():
    with pytest.raises(ValueError, match="levels is at most 1,000,000; given 1000000000000"):
        CompressorSection.model_validate({"name": "dithering", "levels": 10**12})
