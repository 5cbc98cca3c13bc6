"""Bundles answer as the runs that they were exported from; ``onnxruntime`` is the oracle of torch, and the reverse."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from table import ROWS
from torch import nn

from archipel import SGD, FedAvg, Federation, Local, Routes, classification, fit, regression
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.serving import NotExportableError, export_bundle
from archipel_serve.manifest import BundleError, read_manifest
from archipel_serve.models import Models

# Both compute in float32 in another order: the promise of the export, of numbers of about 1.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
QUICK = ("FedSPM 1×", "FedGMM learned 1×", "Local", "FedAvgFT", "FedEMExperts C×")


@pytest.fixture(scope="module")
def trained(uneven):
    made = {}

    def run(name):
        if name not in made:
            row = ROWS[name]
            made[name] = fit(row.make(uneven), uneven, groups=row.groups, rounds=2, setting=Setting(engine=Loop))
        return made[name]

    return run


def answers_as_the_run(run, folder, x):
    models = Models(export_bundle(run, folder))
    prepared = models.manifest.preparation.prepared(x)
    if isinstance(run.algorithm, Routes):
        for prior in (None, "uniform", [0.1, 0.2, 0.3, 0.4]):
            found = np.exp(models.log_posterior(prepared, models.embed(prepared), prior))
            np.testing.assert_allclose(found, run.route(x, prior).probabilities.numpy(), **CLOSE)
    for client in (None, 0, run.facts.names[-1]):
        found, expected = models.predict(prepared, client), run.predict(x, client)
        np.testing.assert_allclose(found.values, expected.values.numpy(), **CLOSE)
        assert found.answered_by == expected.answered_by
        assert found.labels == expected.labels


@pytest.mark.parametrize("name", QUICK)
def test_a_bundle_answers_as_its_run(name, trained, uneven, tmp_path):
    x = torch.cat([client.test["x"] for client in uneven.clients])
    answers_as_the_run(trained(name), tmp_path / "bundle", x)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in ROWS if name not in QUICK and ROWS[name].predicts])
def test_every_method_that_predicts_exports(name, trained, uneven, tmp_path):
    x = torch.cat([client.test["x"] for client in uneven.clients])
    answers_as_the_run(trained(name), tmp_path / "bundle", x)


def test_methods_that_fit_a_distribution_are_refused_by_name(trained, tmp_path):
    with pytest.raises(TypeError, match="FedEM has no model that answers queries: it fits a distribution"):
        export_bundle(trained("FedEM"), tmp_path / "bundle")
    assert not any(tmp_path.iterdir())


def small_images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (4, 20, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return [(images, torch.arange(20) % 3) for images in x]


def test_images_and_batch_statistics_are_in_the_graph(tmp_path):
    islands = Federation.from_arrays(small_images(), test=0.2)
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    solver = SGD(lr=0.1, steps=2, batch=5)
    for policy in ("share", "local"):
        run = fit(FedAvg(classification(encoder, islands), solver, batch_norm=policy), islands, rounds=1)
        place = tmp_path / policy
        # Another size as well: the bundle resizes as the run does.
        answers_as_the_run(run, place, np.random.default_rng(0).integers(0, 256, (5, 11, 9), np.uint8))


def test_regressions_and_tables_in_double_precision_export(tmp_path):
    generator = torch.Generator().manual_seed(0)
    parts = [1e9 + torch.rand(20, 2, generator=generator, dtype=torch.float64) for _ in range(4)]
    islands = Federation.from_arrays([(x.numpy(), (x - 1e9).sum(1, keepdim=True).numpy()) for x in parts], test=0.2)
    assert islands.inputs.double
    run = fit(Local(regression(nn.Linear(2, 3), islands), SGD(lr=0.1, steps=2)), islands, rounds=1)
    answers_as_the_run(run, tmp_path / "bundle", parts[0].numpy()[:7])


def test_a_models_operation_that_onnx_lacks_is_named(uneven, tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvalsh(x[:, :, None] @ x[:, None, :])

    run = fit(Local(classification(Odd(), uneven), SGD(lr=0.1, steps=1)), uneven, rounds=1)
    with pytest.raises(NotExportableError, match=r"Local can't be exported: the answer model of .* has operations"):
        export_bundle(run, tmp_path / "bundle")
    assert not any(tmp_path.iterdir())


def test_a_sites_bundle_holds_its_own_model_and_the_router(trained, uneven, tmp_path):
    run = trained("FedSPM 1×")
    name = run.facts.names[2]
    folder = export_bundle(run, tmp_path / "site", site=name)
    models = Models(folder)
    x = uneven.clients[0].test["x"].numpy()
    np.testing.assert_allclose(models.predict(x).values, run.predict(x, 2).values.numpy(), **CLOSE)
    with pytest.raises(ValueError, match=f"no answer model of {run.facts.names[0]}: this is the bundle of {name}"):
        models.predict(x, 0)
    assert [path.name for path in sorted((folder / "answers").iterdir())] == ["0002.onnx", "0002.safetensors"]
    whole = b"".join(path.read_bytes() for path in folder.rglob("*.onnx"))
    own = load_file(folder / "answers" / "0002.safetensors")
    states = [{f"client/{path}": tensor for path, tensor in flatten(client).items()} for client in run.clients]
    largest = max((path for path in own if path.startswith("client/")), key=lambda path: own[path].size)
    assert [state[largest].numpy().tobytes() in whole for state in states] == [False, False, True, False]
    assert np.array_equal(own[largest], states[2][largest].numpy())
    rows = json.loads((folder / "card.json").read_text())["metrics per site"]
    assert [row["client"] for row in rows] == [name]


def test_weights_are_safetensors_as_well(trained, tmp_path):
    run = trained("Local")
    folder = export_bundle(run, tmp_path / "bundle")
    for i, client in enumerate(run.clients):
        found = load_file(folder / "answers" / f"{i:04}.safetensors")
        assert {name for name in found if "velocity" in name} == set()
        assert np.array_equal(found["client/model/head/weight"], client["model"]["head"]["weight"].numpy())


def key_pair(folder, name):
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True, timeout=30)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True, timeout=30)
    return private, public


def test_signatures_and_hashes_tell_what_was_changed(trained, tmp_path):
    private, public = key_pair(tmp_path, "ours")
    _, stranger = key_pair(tmp_path, "theirs")
    signed = export_bundle(trained("Local"), tmp_path / "signed", sign=private)
    assert read_manifest(signed, public).method == "Local"
    # openssl, another implementation of Ed25519, agrees.
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin"]
    files = ["-in", signed / "manifest.json", "-sigfile", signed / "manifest.sig"]
    subprocess.run([*check, *files], check=True, timeout=30, capture_output=True)
    with pytest.raises(BundleError, match="isn't signed by the key of"):
        read_manifest(signed, stranger)

    def changed(name, old, new):
        place = tmp_path / f"changed-{name.replace('/', '-')}"
        shutil.copytree(signed, place)
        data = (place / name).read_bytes()
        assert old in data
        (place / name).write_bytes(data.replace(old, new, 1))
        return place

    with pytest.raises(BundleError, match="was changed since"):
        read_manifest(changed("manifest.json", b'"Local"', b'"Other"'), public)
    with pytest.raises(BundleError, match=r"card.json isn't the file that was exported"):
        read_manifest(changed("card.json", b'"method"', b'"METHOD"'))
    with pytest.raises(BundleError, match=r"answers/0001.onnx isn't the file"):
        read_manifest(changed("answers/0001.onnx", b"answer", b"answr_"))
    (signed / "manifest.sig").unlink()
    with pytest.raises(BundleError, match="isn't signed, and only bundles signed by"):
        read_manifest(signed, public)
    with pytest.raises(BundleError, match="is no bundle"):
        read_manifest(tmp_path)
    with pytest.raises(FileExistsError, match="Choose another folder"):
        export_bundle(trained("Local"), signed)
