"""Configurations: what people write, what they get wrong, and what comes of it."""

import numpy as np
import pytest
import torch
import yaml

from archipel import FedAvg, Federation, FedSPM, Full, Sample, fit
from archipel.engines.setting import Setting
from archipel.experiments import PRESETS, build, federation_from, oracle_of, read_config, to_yaml
from archipel.experiments.methods import KINDS, SECTIONS
from archipel.experiments.oracle import pool
from archipel.experiments.reading import validate
from archipel.models import ENCODERS


def wrong(*settings: str, preset: str = "digits-fedspm") -> str:
    with pytest.raises(ValueError, match="isn't a run that can be made") as caught:
        read_config(preset, settings)
    return str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_show_and_file_give_the_same_run(name: str, tmp_path) -> None:
    config = read_config(name, ["seed=3"])
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(config))
    assert read_config(str(file)) == config


def test_the_papers_settings_are_the_defaults() -> None:
    section = read_config("fmnist-fedspm").algorithm
    local, routing = section.local, section.routing
    assert (local.lr, local.steps, local.batch, local.momentum, local.schedule) == (0.01, 10, 128, 0.9, "cosine")
    assert (routing.lr, routing.steps, routing.batch, routing.momentum) == (0.01, 15, 128, 0.95)
    assert section.expectation == "exact"


def test_a_part_of_a_section_keeps_the_sections_other_defaults() -> None:
    routing = read_config("fmnist-fedspm", ["algorithm.routing.lr=0.02"]).algorithm.routing
    assert (routing.lr, routing.steps, routing.momentum) == (0.02, 15, 0.95)


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("5E-2", 0.05), ("0.1", 0.1), ("1", 1.0)])
def test_numbers_are_read_as_people_write_them(text: str, value: float) -> None:
    assert read_config("digits-fedavg", [f"algorithm.local.lr={text}"]).algorithm.local.lr == value


def test_epochs_take_the_place_of_default_steps() -> None:
    local = read_config("digits-fedavg", ["algorithm.local.epochs=2"]).algorithm.local
    assert (local.epochs, local.steps) == (2, None)


def test_switching_the_algorithm_drops_what_only_the_preset_said() -> None:
    config = read_config("digits-fedspm", ["algorithm.name=fedavg", "algorithm.local.lr=0.5"])
    assert config.algorithm.name == "fedavg"
    assert (config.algorithm.local.lr, config.algorithm.local.batch) == (0.5, 32)


def test_switching_the_algorithm_keeps_the_users_own_settings_an_error() -> None:
    assert "algorithm.components: there is no such key" in wrong("algorithm.name=fedavg", "algorithm.components=3")


def test_switching_to_arrays_drops_the_partition(tmp_path) -> None:
    config = read_config("digits-fedavg", ["data.source=arrays", f"data.data_dir={tmp_path}"])
    assert config.data.source == "arrays"


@pytest.mark.parametrize(
    ("setting", "hints"),
    [
        ("rouns=3", ["rouns: there is no such key", "'rounds'"]),
        ("algorithm.locl.lr=1", ["algorithm.locl:", "'local'"]),
        ("algorithm.routing.momentun=0.5", ["algorithm.routing.momentun:", "'momentum'"]),
        ("algorithm.name=fedsmp", ["algorithm.name: is 'fedsmp'", "'fedspm'"]),
        ("algorithm.expectation=incremenal", ["algorithm.expectation:", "exact, incremental", "'incremental'"]),
        ("encoder.name=lenett", ["encoder.name:", "'lenet'", "resnet8"]),
        ("encoder.options.chanels=[4, 8]", ["encoder:", "'channels'"]),
        ("data.source=digit", ["data.source: is 'digit'", "'digits'"]),
        ("data.alpha_inter=0", ["data.alpha_inter: should be greater than 0; given 0"]),
        ("data.clients=2.5", ["data.clients: should be a valid integer; given 2.5"]),
        ("data.partition=iid", ["data.partition: is a section", "given 'iid'"]),
        ("data.partition={classes: 2}", ["data.partition.name: is missing"]),
        ("data.partition={name: patological, classes: 2}", ["data.partition: there is no", "'pathological'"]),
        ("data.partition={name: pathological, clases: 2}", ["data.partition:", "'clases'", "'classes'"]),
        ("data.partition={name: quantity}", ["data.partition: partition quantity needs the option 'exponent'"]),
        ("data.partition={name: natural}", ["data: digits has no clients of its own"]),
        ("data.partition={name: pachinko}", ["data: pachinko needs superclasses", "cifar100"]),
        ("data={source: digits, partition: {name: iid}, alpha_inter: 2.0}", ["data: alpha_inter is 2.0", "iid"]),
        (
            "data={source: digits, partition: {name: iid}, components: 3}",
            ["data: components is 3", "names a component"],
        ),
        (
            "data={source: digits, partition: {name: iid}, view: oracle}",
            ["data: view=oracle can't be combined with the partition iid"],
        ),
        ("data={source: diabetes, partition: {name: shards, per_client: 2}}", ["data: diabetes is a regression"]),
        ("data={source: iris, partition: {name: iid}, size: 8}", ["data: size is 8", "no pixels"]),
        ("data.source=iris", ["data: iris is a table", "data.partition"]),
        ("data.shifts=[{name: rotate, degrees: 45}]", ["data.shifts.0: there is no shift 'rotate'", "'rotated'"]),
        ("data.shifts=[{name: rotated, degres: 45}]", ["data.shifts.0:", "'degres'", "'degrees'"]),
        ("data.shifts=[{name: rotated, degrees: far}]", ["data.shifts.0: shift rotated can't be made", "'far'"]),
        ("data.shifts=[{name: inverted, channels: gren}]", ["data.shifts.0: channels is 'gren'", "all, green"]),
        ("data.shifts=[{name: inverted, clients: [0.5]}]", ["data.shifts.0.clients.0: should be a valid integer"]),
        ("data.shifts=[{name: inverted, clients: [8]}]", ["data: shift inverted names client 8", "0 to 7"]),
        ("data.shifts=[{name: inverted, component: 2}]", ["data: shift inverted names component 2", "0 to 1"]),
        ("rounds=0", ["rounds: should be greater than or equal to 1; given 0"]),
        ("rounds=many", ["rounds: should be a valid integer; given 'many'"]),
        (
            "algorithm.components=0",
            ["algorithm.components: FedSPM's components must be a whole number of at least 1; given 0"],
        ),
        ("algorithm.local.momentum=1", ["algorithm.local:", "[0, 1)", "given 1"]),
        ("cohort={fraction: 0.5, count: 2}", ["cohort:", "fraction=0.5, count=2"]),
        ("cohort.weighted=true", ["cohort:", "needs a fraction or a count"]),
        ("encoder=mlp", ["encoder: is a section", "given 'mlp'"]),
        ("data=3", ["data: is a section", "given 3"]),
        ("workers=true", ["workers: should be a valid integer; given True"]),
        ("name=a/b", ["name:", "without slashes"]),
    ],
)
def test_errors_say_where_what_and_what_is_allowed(setting: str, hints: list[str]) -> None:
    message = wrong(setting)
    assert all(hint in message for hint in hints), message


def test_all_errors_are_told_at_once() -> None:
    lines = wrong("seed=-1", "rounds=0", "encoder.featurs=3", "algorithm.local.lr=-1").splitlines()
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("what", "settings", "hint"),
    [
        ("digit-fedspm", [], "Did you mean 'digits-fedspm'"),
        ("digits-fedspm", ["rounds"], "key=value"),
        ("digits-fedspm", ["=3"], "key=value"),
        ("digits-fedspm", ["rounds.more=3"], "rounds is the value 60"),
        ("digits-fedspm", ["encoder.options=[1"], "can't be read as YAML"),
    ],
)
def test_words_that_are_no_run(what: str, settings: list[str], hint: str) -> None:
    with pytest.raises(ValueError, match=r"preset|value") as caught:
        read_config(what, settings)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("rounds: 3\nrounds: 4\n", "'rounds' stands twice"),
        ("- 1\n", "key: value"),
        ("a: [1\n", "can't be read as YAML"),
    ],
)
def test_files_that_are_no_run(content: str, hint: str, tmp_path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    with pytest.raises(ValueError, match=str(file)) as caught:
        read_config(str(file))
    assert hint in str(caught.value)


def test_settings_shared_by_an_alias_are_changed_in_one_place(tmp_path) -> None:
    file = tmp_path / "shared.yaml"
    file.write_text(
        "rounds: 1\ndata: {source: digits}\n"
        "algorithm: {name: fedspm, local: &block {batch: 32, steps: 5}, routing: *block}\n"
    )
    section = read_config(str(file), ["algorithm.local.lr=0.5"]).algorithm
    assert (section.local.lr, section.routing.lr) == (0.5, 0.01)


def test_a_file_that_is_missing() -> None:
    with pytest.raises(FileNotFoundError, match="archipel show PRESET"):
        read_config("nowhere.yaml")


def test_build_makes_what_is_written() -> None:
    settings = ["data.clients=3", "algorithm.components=3", "algorithm.encoders=own", "encoder.features=16"]
    algorithm, federation = build(read_config("digits-fedspm", settings))
    assert isinstance(algorithm, FedSPM)
    assert (algorithm.components, algorithm.encoders, algorithm.task.features) == (3, "own", 16)
    assert len(federation) == 3
    assert isinstance(build(read_config("digits-fedavg"))[0], FedAvg)


def test_cohorts() -> None:
    assert read_config("digits-fedavg").cohort.build() == Full()
    assert read_config("digits-fedavg", ["cohort.count=2"]).cohort.build() == Sample(count=2)


def test_the_seed_divides_the_data_unless_they_have_their_own() -> None:
    def fingerprint(*settings: str) -> str:
        return build(read_config("digits-fedavg", settings))[1].fingerprint

    assert fingerprint("seed=1") != fingerprint("seed=2")
    assert fingerprint("seed=1", "data.seed=5") == fingerprint("seed=2", "data.seed=5")


def divided(*settings: str, preset: str = "digits-fedavg") -> Federation:
    return federation_from(read_config(preset, settings))


@pytest.mark.parametrize("preset", ["digits-pathological-ditto", "digits-fedavg"])
def test_a_partition_gives_every_client_two_classes(preset: str) -> None:
    federation = divided("data.partition={name: pathological, classes: 2}", "data.clients=5", preset=preset)
    labels = [torch.cat([split["y"] for split in client.splits.values()]) for client in federation.clients]
    assert [len(found.unique()) for found in labels] == [2] * 5
    assert sum(map(len, labels)) == 1797
    assert federation.inputs.shape == (1, 16, 16)


def test_shifts_happen_where_they_are_said_to() -> None:
    plain = divided("data.partition={name: quantity, exponent: 1.0}")
    shifts = (
        "{name: rotated, degrees: 90, clients: [0]}",
        "{name: permute-labels, permutation: [1, 2, 3, 4, 5, 6, 7, 8, 9, 0], clients: [0, 1]}",
    )
    shifted = divided("data.partition={name: quantity, exponent: 1.0}", f"data.shifts=[{', '.join(shifts)}]")
    permuted = {"shift": "permute-labels", "permutation": (1, 2, 3, 4, 5, 6, 7, 8, 9, 0)}
    assert shifted.truth["shifts"] == [[{"shift": "rotated", "degrees": 90}, permuted], [permuted]] + [[]] * 6
    for i, (before, after) in enumerate(zip(plain.clients, shifted.clients, strict=True)):
        x, y = before.train["x"], before.train["y"]
        assert torch.equal(after.train["x"], torch.rot90(x, 1, (2, 3)) if i == 0 else x)
        assert torch.equal(after.train["y"], (y + 1) % 10 if i < 2 else y)
        assert torch.equal(after.truth["train"]["label"], y)


@pytest.mark.parametrize("partition", ["null", "{name: iid}"])
def test_shifts_of_a_component(partition: str) -> None:
    settings = (f"data.partition={partition}", "data.components=3", "data.clients=2")
    federation = divided(*settings, "data.shifts=[{name: inverted, component: 2}]")
    assert federation.truth["weights"].shape == (2, 3)
    assert federation.truth["shifts"] == [[{"component": 2, "shift": "inverted", "channels": "all"}]] * 2


def test_a_files_defaults_of_dual_heterogeneity_are_no_objection_to_a_partition(tmp_path) -> None:
    file = tmp_path / "dual.yaml"
    file.write_text(to_yaml(read_config("digits-fedavg")))
    assert read_config(str(file), ["data.partition={name: iid}"]).data.partition.name == "iid"


def test_options_of_a_partition_that_cannot_be_used() -> None:
    with pytest.raises(ValueError, match="partition pathological can't be made with the options"):
        divided("data.partition={name: pathological, classes: two}")


@pytest.mark.parametrize(("source", "size"), [("breast-cancer", 569), ("wine", 178), ("iris", 150), ("diabetes", 442)])
def test_tables_are_divided(source: str, size: int) -> None:
    settings = [f"data.source={source}", "data.partition={name: iid}", "encoder.name=mlp"]
    algorithm, federation = build(read_config("digits-fedavg", [*settings, "data.shifts=[{name: affine, scale: 2}]"]))
    assert sum(len(split["y"]) for client in federation.clients for split in client.splits.values()) == size
    assert algorithm.task.outputs == len(federation.classes or "1")


def test_arrays_from_a_folder(tmp_path) -> None:
    rng = np.random.default_rng(0)
    for name in ("Nice", "Lyon"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(20, 5)), y=np.arange(20) % 3)
    settings = {"rounds": 2, "data": {"source": "arrays", "data_dir": str(tmp_path)}, "encoder": {"name": "mlp"}}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(settings | {"algorithm": {"name": "fedavg"}}))
    algorithm, federation = build(read_config(str(file)))
    assert [client.name for client in federation.clients] == ["Lyon", "Nice"]
    assert federation.inputs.shape == (5,)
    assert algorithm.task.outputs == 3
    np.savez(tmp_path / "Metz.npz", x=rng.normal(size=(20, 5)))
    with pytest.raises(ValueError, match=r"Metz\.npz can't be read: it has no array y"):
        build(read_config(str(file)))


def test_arrays_that_are_missing(tmp_path) -> None:
    config = read_config("digits-fedavg", ["data.source=arrays", f"data.data_dir={tmp_path}"])
    with pytest.raises(FileNotFoundError, match=r"holds no \.npz, "):
        build(config)


def test_every_encoder_can_be_named() -> None:
    for name in ENCODERS:
        assert read_config("digits-fedavg", [f"encoder.name={name}"]).encoder.name == name


def test_the_oracle_knows_true_labels_and_sees_its_share() -> None:
    config = read_config("digits-fedavg", ["data.clients=4", "algorithm.local.steps=6"])
    oracle = oracle_of(config, share=0.25)
    assert oracle.algorithm.local.steps == 6
    federation, pooled = build(config)[1], build(oracle)[1]
    assert len(pooled) == 1
    assert int(pooled.sizes.sum()) == int(federation.sizes.sum())
    true = torch.cat([client.truth["train"]["label"] for client in federation.clients])
    assert torch.equal(pooled.clients[0].train["y"], true)
    assert pooled.fingerprint == pool(federation).fingerprint


def test_no_oracle_of_a_partition() -> None:
    with pytest.raises(ValueError, match="can't be combined with the partition pathological"):
        oracle_of(read_config("digits-fedavg", ["data.partition={name: pathological, classes: 2}"]))


def test_no_oracle_without_steps() -> None:
    with pytest.raises(ValueError, match="counted in steps"):
        oracle_of(read_config("digits-fedavg", ["algorithm.local.epochs=1"]))


@pytest.mark.parametrize("preset", ["heart-fedavg", "heart-fedspm"])
def test_hospitals_are_the_clients_of_the_heart_presets(preset, data_dir):
    algorithm, federation = build(read_config(preset, [f"data.data_dir={data_dir}"]))
    # 303, 294, 123 and 200 patients, as the publisher counts them; 30 % of each are kept for testing.
    assert [len(c.train["y"]) + len(c.test["y"]) for c in federation.clients] == [303, 294, 123, 200]
    assert algorithm.task.outputs == 2


def test_a_natural_source_takes_its_loaders_options_and_refuses_others():
    with pytest.raises(ValueError, match="heart-disease has no option 'mising'"):
        build(read_config("heart-fedavg", ["data.options={mising: keep}"]))


@pytest.mark.parametrize("name", KINDS)
def test_every_algorithm_is_made_and_run_from_a_configuration(name, tmp_path):
    rng = np.random.default_rng(0)
    for client in range(3):
        x = rng.normal(size=(20, 4)) + client
        np.savez(tmp_path / f"island-{client}.npz", x=x, y=(x[:, 0] > client).astype(int))
    routed = "router" in SECTIONS[name].model_fields
    settings = {
        "rounds": 2,
        "data": {"source": "arrays", "data_dir": str(tmp_path)},
        "encoder": {"name": "mlp", "features": 4, "options": {"hidden": [4]}},
        "algorithm": {"name": name} | ({"router": {"name": "mlp", "features": 4}} if routed else {}),
    }
    config = validate(settings, "a run of each")
    assert validate(yaml.safe_load(to_yaml(config)), "the same again") == config
    algorithm, federation = build(config)
    assert type(algorithm) is KINDS[name]
    run = fit(algorithm, federation, rounds=config.rounds, setting=Setting(engine="loop"))
    assert 0 <= run.metrics["average_accuracy"] <= 1
