"""FEMNIST, heart disease, HAPT and crossbill: the real files, against their publishers' counts; and damaged ones.

What is expected comes from the data sets' descriptions. The loaders' checksums alone were recorded from the files.
"""

import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch

from archipel.data.sources.leaf import femnist
from archipel.data.sources.uci import FEATURES, HOSPITALS, hapt, heart_disease
from archipel.data.sources.unmarked import crossbill


def test_femnist_is_ordered_by_writer(data_dir):
    source = femnist(data_dir)
    assert source.x.shape == (70_903, 28, 28)
    assert source.x.dtype == torch.uint8
    assert len(source.client_names) == len(set(source.client_names)) == 200
    assert bool((source.client.diff() >= 0).all())
    with np.load(data_dir / "femnist-200.npz") as file:
        assert source.client.bincount().tolist() == file["examples_per_writer"].tolist()
    # Digits, capitals, then small letters, and all of them written; the paper is white.
    assert (source.classes[9], source.classes[10], source.classes[36]) == ("9", "A", "a")
    assert source.y.unique().tolist() == list(range(62))
    assert source.x[:, 0, 0].float().mean() > 250


def test_heart_disease_has_the_published_counts(data_dir):
    source = heart_disease(data_dir)
    assert source.client.bincount().tolist() == [303, 294, 123, 200]
    assert source.client_names == HOSPITALS
    level, client = source.extra["level"], source.client
    # heart-disease.names, "Class Distribution"; of Hungary the file has only 0 and 1 for diseased.
    assert level[client == 0].bincount().tolist() == [164, 55, 36, 35, 13]
    assert int((level[client == 1] == 0).sum()) == 188
    assert level[client == 2].bincount().tolist() == [8, 48, 32, 30, 5]
    assert level[client == 3].bincount().tolist() == [51, 56, 41, 42, 10]
    assert torch.equal(source.y, (level > 0).long())


def test_missing_values_of_heart_disease_are_recorded(data_dir):
    source = heart_disease(data_dir)
    gaps = source.extra["missing"]
    assert torch.equal(torch.isnan(source.x), gaps)
    # Counted in the files by themselves: "?", and a cholesterol of 0.
    asked = 0
    for hospital in HOSPITALS:
        for line in (data_dir / "heart-disease" / f"processed.{hospital}.data").read_text().split():
            values = line.split(",")
            asked += values.count("?") + (values[4] not in "?" and float(values[4]) == 0)
    assert int(gaps.sum()) == asked
    chol = FEATURES.index("chol")
    assert bool(gaps[source.client == 2, chol].all())  # Switzerland measured none
    assert source.x[~gaps[:, chol], chol].min() > 0


def test_dropping_columns_leaves_the_complete_patients_of_flamby(data_dir):
    source = heart_disease(data_dir, missing="drop-columns")
    assert source.client.bincount().tolist() == [303, 261, 46, 130]
    assert source.x.shape == (740, 10)
    assert source.features == FEATURES[:10]
    assert bool(torch.isfinite(source.x).all())


def test_imputation_fills_gaps_with_the_median_and_nothing_else(data_dir):
    kept, filled = heart_disease(data_dir), heart_disease(data_dir, missing="impute-median")
    gaps = kept.extra["missing"]
    assert torch.equal(filled.x[~gaps], kept.x[~gaps])
    for column in range(len(FEATURES)):
        known = np.sort(kept.x[~gaps[:, column], column].numpy())
        middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
        assert (filled.x[gaps[:, column], column] == middle).all()
    assert filled.checksum == kept.checksum  # of the content as published


def test_hapt_windows_are_those_of_thirty_people(data_dir):
    source = hapt(data_dir)
    assert source.x.shape == (10_017, 128, 6)
    assert source.x.dtype == torch.float16
    assert source.kind == "series"
    assert source.client.unique().tolist() == list(range(30))
    assert source.client_names[0] == "person-1"
    # Neighbouring windows share half their samples ("2.56 sec and 50% overlap").
    assert torch.equal(source.x[0, 64:], source.x[1, :64])
    # Gravity is 1 g: along the first axis for those who stand, across it for those who lie.
    mean = {name: source.x[source.y == code].float().mean((0, 1)) for code, name in enumerate(source.classes)}
    assert mean["standing"][:3].norm() == pytest.approx(1, abs=0.05)
    assert mean["standing"][0].abs() > 0.9
    assert mean["lying"][0].abs() < 0.2
    # Who walks moves more than who sits, most on the way downstairs.

    moving = source.x.float().std(1).mean(1)
    moved = {name: moving[source.y == code].mean() for code, name in enumerate(source.classes)}
    assert max(moved, key=moved.get) == "walking downstairs"
    assert min(moved[name] for name in moved if name.startswith("walking")) > 3 * moved["sitting"]


def test_crossbill_sites_are_divided_by_elevation(data_dir):
    source = crossbill(data_dir, bands=4)
    assert source.x.shape == (267, 9, 3)
    # 1,103 values are missing in the file, in detections or in dates of visits.
    assert int(torch.isnan(source.x).sum() + torch.isnan(source.extra["date"]).sum()) == 1103
    assert set(source.x[~torch.isnan(source.x)].tolist()) == {0.0, 1.0}
    assert torch.equal(source.y, (source.x.nan_to_num() == 1).flatten(1).any(1).long())
    elevation = source.extra["elevation"]
    held = [elevation[source.client == band] for band in range(4)]
    assert all(lower.max() < higher.min() for lower, higher in pairwise(held))
    # Quarters, but for sites of the same elevation, which stay together.
    assert sum(map(len, held)) == 267
    assert all(abs(len(values) - 267 / 4) < 20 for values in held)
    assert source.client_names[0].startswith("250–")
    with pytest.raises(ValueError, match="bands is 60, but the sites have 25 elevations only"):
        crossbill(data_dir, bands=60)
    with pytest.raises(ValueError, match="bands is 0"):
        crossbill(data_dir, bands=0)


@pytest.mark.parametrize(
    ("load", "file"), [(femnist, "femnist-200.npz"), (hapt, "hapt-windows.npz")], ids=["femnist", "hapt"]
)
def test_damaged_npz_files_are_named(data_dir, tmp_path, load, file):
    whole = (data_dir / file).read_bytes()
    for content in (
        b"",
        whole[:1000],
        whole[: len(whole) // 2],
        whole[: len(whole) // 2] + bytes(2000) + whole[-9000:],
    ):
        (tmp_path / file).write_bytes(content)
        with pytest.raises(ValueError, match=f"{file} can't be read"):
            load(tmp_path)
    np.savez(tmp_path / file, x=np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(ValueError, match="it has no array y and no"):
        load(tmp_path)


def test_other_content_is_refused_unless_it_is_meant(tmp_path):
    x, y = np.zeros((3, 28, 28), np.uint8), np.array([0, 61, 5], np.uint8)
    parts = {"x": x, "y": y, "examples_per_writer": np.array([1, 2]), "writer": np.array(["w1", "w2"])}
    np.savez(tmp_path / "femnist-200.npz", **parts)
    with pytest.raises(ValueError, match="don't hold FEMNIST: the SHA-256"):
        femnist(tmp_path)
    assert femnist(tmp_path, verify=False).client.tolist() == [0, 1, 1]
    for change, message in [
        ({"y": np.array([0, 62, 5])}, "class codes 0 to 62, but has 62 classes"),
        ({"examples_per_writer": np.array([1, 1])}, "doesn't hold FEMNIST"),
        ({"y": y[:2]}, "columns of different lengths"),
    ]:
        np.savez(tmp_path / "femnist-200.npz", **(parts | change))
        with pytest.raises(ValueError, match=message):
            femnist(tmp_path, verify=False)


def test_a_larger_femnist_is_read_and_not_compared(tmp_path):
    parts = {"x": np.zeros((3, 28, 28), np.uint8), "y": np.array([0, 61, 5]), "writer": np.array(["w1", "w2"])}
    np.savez(tmp_path / "femnist.npz", examples_per_writer=np.array([2, 1]), **parts)
    assert len(femnist(tmp_path)) == 3


@pytest.mark.parametrize(
    ("hospital", "content", "message"),
    [
        ("va", "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n63,1,4,140", "processed.va.data, line 2 holds"),
        ("cleveland", "63,1,4,140,260,0,1,112,1,3,2,?,?,7", "line 1 holds .* a label from 0 to 4"),
        ("cleveland", "63,1,4,140,260,0,1,112,1,3,2,?,?,?", "line 1 holds .* a label from 0 to 4"),
        ("hungarian", "63,x,4,140,260,0,1,112,1,3,2,?,?,2", "line 1: could not convert string to float: 'x'"),
        ("switzerland", "", "processed.switzerland.data is empty"),
    ],
)
def test_damaged_hospitals_are_named(data_dir, tmp_path, hospital, content, message):
    shutil.copytree(data_dir / "heart-disease", tmp_path / "heart-disease", copy_function=shutil.copyfile)
    (tmp_path / "heart-disease").chmod(0o755)
    file = tmp_path / "heart-disease" / f"processed.{hospital}.data"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        heart_disease(tmp_path)
    file.unlink()
    file.with_name("processed.cleveland.data").touch()
    with pytest.raises((FileNotFoundError, ValueError), match=r"isn't there|is empty"):
        heart_disease(tmp_path)


def test_heart_disease_says_what_missing_may_be(data_dir):
    with pytest.raises(ValueError, match="missing is 'mean'; it is one of keep, impute-median, drop-columns"):
        heart_disease(data_dir, missing="mean")


def test_a_damaged_crossbill_is_named(data_dir, tmp_path):
    content = (data_dir / "crossbill.csv").read_text()
    for damaged, message in [
        (content[:5000], r"crossbill.csv, line \d+ has no"),
        (content.split("\n", 1)[0], "crossbill.csv holds no sites"),
        (content.replace("450", "4x0", 1), "crossbill.csv: could not convert string to float: '4x0'"),
        (content.replace(",0,", ",1,", 1), "don't hold Crossbill: the SHA-256"),
    ]:
        (tmp_path / "crossbill.csv").write_text(damaged)
        with pytest.raises(ValueError, match=message):
            crossbill(tmp_path)
