"""The command ``archipel em``: what it reads, prints, writes and refuses."""

import csv
import json

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel.em.client_files import read_files
from archipel.em.estimators import FederatedGaussianMixture

CENTRES = np.array([[-6.0, 0.0], [6.0, 1.0], [0.0, 8.0]])


def call(*words, code=0):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["em", *map(str, words)])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Three clients that hold three blobs in different shares, in files of the three kinds."""
    folder, rng = tmp_path_factory.mktemp("blobs"), np.random.default_rng(0)
    shares = {"Nice": [0.8, 0.1, 0.1], "Lyon": [0.1, 0.8, 0.1], "Paris": [0.3, 0.3, 0.4]}
    data = {}
    for (name, share), n in zip(shares.items(), (60, 30, 90), strict=True):
        z = rng.choice(3, n, p=share)
        data[name] = CENTRES[z] + rng.normal(size=(n, 2)), z
    np.savetxt(folder / "Nice.csv", data["Nice"][0], delimiter=",", header="x0,x1", comments="")
    np.save(folder / "Lyon.npy", data["Lyon"][0])
    np.savez(folder / "Paris.npz", x=data["Paris"][0])
    return folder, data


def test_it_prints_the_mixture(blobs):
    folder, data = blobs
    output = call(folder, "--components", 3).output
    lines = [line.split() for line in output.splitlines()]
    rows = sorted((line for line in lines if line and line[0] in ("0", "1", "2")), key=lambda row: float(row[2]))
    # Means of some 60 examples of standard deviation 1
    assert [float(row[2]) for row in rows] == pytest.approx([-6, 0, 6], abs=0.6)
    counts = np.bincount(np.concatenate([z for _, z in data.values()]))
    assert [float(row[1]) for row in rows] == pytest.approx(counts[[0, 2, 1]] / 180, abs=0.02)
    assert "3 with 180 examples of 2 columns" in output
    for word in ("log-likelihood", "BIC", "rounds", "bytes"):
        assert word in output


def test_selection_personal_weights_and_files(blobs, tmp_path):
    folder, data = blobs
    out = tmp_path / "out"
    words = (
        "--select",
        "2:4",
        "--personal",
        "--starts",
        2,
        "--out",
        out,
        "--write",
        "labels,responsibilities",
        "--json",
    )
    record = json.loads(call(folder, *words).stdout)
    assert record["components"] == 3  # there are three blobs, six deviations apart
    assert [entry["components"] for entry in record["tried"]] == [2, 3, 4]
    assert record["bic"] == min(entry["bic"] for entry in record["tried"])
    order = np.argsort(np.array(record["parameters"]["means"])[:, 0])[[0, 2, 1]]
    for name, (x, z) in data.items():
        own = np.array(record["clients"][name]["weights"])[order]
        expected = (np.bincount(z, minlength=3) + 1 / 3) / (len(z) + 1)  # with one pseudo-example
        assert own == pytest.approx(expected, abs=0.01)  # blobs six deviations apart
        labels = np.loadtxt(out / "labels" / f"{name}.csv", skiprows=1)
        assert (order[z] == labels).mean() > 0.98
        rows = np.loadtxt(out / "responsibilities" / f"{name}.csv", skiprows=1, delimiter=",")
        assert rows.shape == (len(x), 3)
        assert rows.sum(1) == pytest.approx(1, abs=1e-8)
    written = safetensors.numpy.load((out / "model.safetensors").read_bytes())
    assert written["covariances"].shape == (3, 2, 2)
    assert written["means"].tolist() == record["parameters"]["means"]
    assert json.loads((out / "model.json").read_text()) == record


def test_it_is_the_estimator(blobs):
    folder, _ = blobs
    record = json.loads(call(folder, "-K", 2, "--covariance", "diag", "--seed", 4, "--json").stdout)
    tables, _, columns = read_files(folder, regresses=False)
    assert list(tables) == ["Lyon", "Nice", "Paris"]
    assert columns == ("x0", "x1")
    model = FederatedGaussianMixture(2, covariance_type="diag", random_state=4).fit(tables)
    assert record["parameters"]["means"] == model.means_.tolist()
    assert record["bic"] == model.bic(tables)


def test_gaps_in_files_are_imputed(tmp_path):
    folder, out, rng = tmp_path / "in", tmp_path / "out", np.random.default_rng(0)
    folder.mkdir()
    for name in ("A", "B"):
        z = rng.normal(size=(40, 1))
        x = z @ np.array([[1.0, 2.0, -1.0]]) + 0.3 * rng.normal(size=(40, 3))
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = [[f"{value:.6f}" for value in row] for row in x]
            rows[3][1] = "NA" if name == "A" else ""
            csv.writer(file).writerows([["height", "weight", "age"], *rows])
        truth = x[3, 1]
        call(
            folder, "--family", "factor", "-K", 1, "--tol", 1e-3, "--out", out, "--write", "imputed,factors"
        ) if name == "B" else None
    lines = (out / "imputed" / "B.csv").read_text().splitlines()
    assert lines[0] == "height,weight,age"
    assert float(lines[4].split(",")[1]) == pytest.approx(
        truth, abs=3.0
    )  # two factor deviations of 2 × 0.3, and noise of 0.3, five times
    assert len((out / "factors" / "A.csv").read_text().splitlines()) == 41


def test_regressions_have_a_target(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("A", "B"):
        x = rng.normal(size=(80, 1))
        y = np.where(np.arange(80) % 2, 3, -3)[:, None] * x
        np.savetxt(tmp_path / f"{name}.csv", np.hstack([y, x]), delimiter=",", header="y,x", comments="")
    words = (
        tmp_path,
        "--family",
        "regression",
        "--target",
        "y",
        "--compress",
        "dithering:16",
        "--rounds",
        30,
        "--starts",
        1,
    )
    record = json.loads(call(*words, "--json").stdout)
    assert record["columns"] == ["x"]
    assert sorted(np.array(record["parameters"]["coefs"])[:, 0]) == pytest.approx([-3, 3], abs=0.3)
    assert record["uplink"] < record["downlink"]  # compressed, and two exchanges before


def test_what_is_wrong_is_said(blobs, tmp_path):
    folder, _ = blobs
    refused = {
        (tmp_path / "nowhere",): "there is no folder",
        (tmp_path,): "holds no .npz, .npy, .csv, .tsv or .parquet files",
        (folder, "--family", "normal"): "There is no family 'normal'; there are gaussian, bernoulli",
        (folder, "--family", "poisson"): "Lyon: PoissonMixture takes a whole number",
        (folder, "--select", "3:1"): "--select is FROM:TO",
        (folder, "--compress", "zip"): "--compress is dithering:LEVELS",
        (folder, "--write", "labels"): "needs --out FOLDER",
        (folder, "--out", tmp_path / "o", "--write", "imputed"): "has labels and responsibilities to write",
        (folder, "--target", "x0"): "is for --family regression",
        (folder, "--family", "factor", "--personal"): "no mixing weights",
        (folder, "-K", "500"): "more than the 180 examples",
        (folder, "--participation", "2"): "participation is a probability",
    }
    for words, message in refused.items():
        assert message in call(*words, code=2).output
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "A.csv").write_text("1,2\n3,four\n")
    assert "line 2: x1 is 'four', which isn't a number" in call(bad, code=2).output
    (bad / "A.csv").write_text("1,2\n3\n")
    assert "line 2 has 1 values, the first line has 2" in call(bad, code=2).output
    (bad / "A.csv").write_text("1,2\n3,\n")
    assert "A contains NaN" in call(bad, code=2).output
    np.save(bad / "B.npy", np.zeros((2, 3)))
    assert "B.npy also has x2" in call(bad, code=2).output
    np.save(bad / "B.npy", np.array(["a"]))
    assert "needed are numbers, (n, d)" in call(bad, code=2).output


CSV = "a,b\n1,2\n3,5\n4,4\n"


def write_files(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return folder


def test_endings_in_capitals_are_read_too(tmp_path):
    assert list(read_files(write_files(tmp_path, A_CSV=CSV, b_csv=CSV), regresses=False)[0]) == ["A", "b"]


def test_a_first_row_of_missing_values_is_no_line_of_names(tmp_path):
    tables, _, names = read_files(write_files(tmp_path, a_csv="NA,\n1,2\n"), regresses=False)
    np.testing.assert_array_equal(tables["a"], [[np.nan, np.nan], [1, 2]])
    assert names == ("x0", "x1")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"a_csv": ",a,b\n0,1,2\n1,3,4\n"}, "column 0 has no name.*index=False"),
        ({"a_csv": "a,b,a\n0,1,2\n"}, "two columns 'a'"),
        ({"a_csv": "a;b\n1,5;2\n"}, "semicolons"),
        ({"a_csv": "é,b\n1,2\n".encode("latin-1")}, r"a\.csv can't be read.*UTF-8"),
        ({"a_npz": b"PK\x03\x04garbage"}, r"a\.npz can't be read"),
    ],
)
def test_files_that_would_be_misread_are_refused(tmp_path, content, what):
    with pytest.raises(ValueError, match=what):
        read_files(write_files(tmp_path, **content), regresses=False)


def test_too_many_components_are_refused_before_anything_is_fitted(tmp_path):
    output = call(write_files(tmp_path, a_csv=CSV), "--select", "1:4", code=2).output
    assert "4 components are more than the 3 examples" in output
    assert "BIC" not in output
    assert "3 factors are more than the 2 columns" in call(tmp_path, "--family", "factor", "-K", 3, code=2).output
