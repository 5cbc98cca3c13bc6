"""Examples as users hand them over: names of columns, masks, bytes, large numbers, odd memory; at every door."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from torch import nn

from archipel import SGD, FedAvg, FedEM, Federation, Run, classification, fit
from archipel.core import keys
from archipel.core.trees import leaves
from archipel.data import Inputs, compose, natural
from archipel.data.features import as_stored
from archipel.data.shifts.feature_shifts import Affine
from archipel.data.sources.folders import client_files
from archipel.em.estimators import FederatedFactorModel, FederatedGaussianMixture, FederatedRegressionMixture
from archipel.em.starts import KMeansPlusPlus
from archipel.families.factor import FactorModel
from archipel.families.gaussian import GaussianMixture
from archipel_serve.columns import column_names

X = pd.DataFrame({"age": [60.0, 70.0, 65.0, 65.0], "sbp": [120.0, 130.0, 125.0, 125.0]})
Y = [0, 1, 0, 1]


def average(federation):
    return FedAvg(classification(nn.Linear(federation.inputs.shape[0], 2), federation), SGD(lr=0.1, steps=1))


def frames(x):
    """The same table in every form that has names."""
    return {
        "pandas": x,
        "pyarrow": pa.Table.from_pandas(x, preserve_index=False),
        "dict": {name: x[name].to_numpy() for name in x},
    }


@pytest.mark.parametrize("form", frames(X))
def test_columns_are_known_by_name(form):
    federation = Federation.from_arrays([(frames(X)[form], Y)] * 2, test=0.0)
    assert federation.inputs.features == ("age", "sbp")
    assert federation.inputs.mean == pytest.approx((65, 125))
    for asked in frames(X).values():
        assert torch.equal(federation.inputs.prepare(asked), torch.tensor(X.to_numpy(np.float32)))
    assert federation.inputs.prepare(X.to_numpy()).shape == (4, 2)
    assert federation.inputs.prepare(X.iloc[1]).tolist() == [[70, 130]]
    assert federation.inputs.prepare({"age": 70, "sbp": 130}).tolist() == [[70, 130]]


@pytest.mark.parametrize("form", frames(X))
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (X[["sbp", "age"]], r"has the columns sbp, age, and .* has age, sbp, in another order"),
        (X.rename(columns={"sbp": "SBP"}), "lacks sbp and also has SBP"),
        (X[["age"]], r"lacks sbp\. Its columns"),
        (X.assign(bmi=25.0), r"also has bmi\. Its columns"),
    ],
)
def test_other_columns_are_refused_at_every_door(form, other, message):
    given = frames(other)[form]
    with pytest.raises(ValueError, match=f"client 'client-1': x {message}"):
        Federation.from_arrays([(X, Y), (given, Y)])
    federation = Federation.from_arrays([(X, Y)] * 2, test=0.0)
    with pytest.raises(ValueError, match=f"x {message}"):
        federation.inputs.prepare(given)
    run = fit(average(federation), federation, rounds=1)
    with pytest.raises(ValueError, match=f"x {message}"):
        run.predict(given)
    if form == "pandas":
        with pytest.raises(ValueError, match="feature names"):
            FederatedGaussianMixture(1).fit([X, other])


def test_names_stay_with_the_data(tmp_path):
    federation = Federation.from_arrays([(X, Y)] * 3, test=0.0)
    shifted = compose(federation, clients=[[Affine(2.0)], [], []])
    assert shifted.inputs.features == ("age", "sbp")
    assert federation.hold_out(1)[0].inputs.features == ("age", "sbp")
    federation.save(tmp_path / "lab")
    assert Federation.load(tmp_path / "lab").inputs == federation.inputs
    algorithm = average(federation)
    fit(algorithm, federation, rounds=1).save(tmp_path / "run")
    assert Run.read(tmp_path / "run", algorithm).facts.inputs == federation.inputs
    (tmp_path / "sites").mkdir()
    X.assign(y=Y).to_csv(tmp_path / "sites" / "A.csv", index=False)
    assert natural(client_files(tmp_path / "sites"), test=0.0).inputs.features == ("age", "sbp")
    X[["sbp", "age"]].assign(y=Y).to_csv(tmp_path / "sites" / "B.csv", index=False)
    with pytest.raises(ValueError, match=r"B\.csv has the columns sbp, age, and .*A\.csv has age, sbp"):
        client_files(tmp_path / "sites")


def test_names_that_are_no_names():
    assert column_names(pd.DataFrame([[1, 2]])) == ()
    assert column_names(np.zeros((2, 2))) == column_names([[1, 2]]) == column_names(torch.zeros(2)) == ()
    with pytest.raises(ValueError, match="two columns are called 'a'"):
        column_names(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="columns are called 'a' and 1"):
        Federation.from_arrays([(pd.DataFrame([[1, 2]] * 4, columns=["a", 1]), Y)])
    with pytest.raises(ValueError, match=r"has names of columns .*age, sbp.* has none"):
        Federation.from_arrays([(X, Y), (X.to_numpy(), Y)])


NUMBERED = X.set_axis([0, 1], axis=1)
LEVELS = X.set_axis(pd.MultiIndex.from_tuples([("vital", "age"), ("vital", "sbp")]), axis=1)


@pytest.mark.parametrize(
    ("x", "swapped"),
    [
        (NUMBERED, NUMBERED[[1, 0]]),
        (X.set_axis([4, 7], axis=1), X.set_axis([4, 7], axis=1)[[7, 4]]),
        (LEVELS, LEVELS[LEVELS.columns[::-1]]),
        (X, [row for _, row in X[["sbp", "age"]].iterrows()]),
    ],
    ids=["numbers", "other numbers", "levels", "rows"],
)
def test_swapped_columns_are_refused_whatever_names_them(x, swapped):
    with pytest.raises(ValueError, match=r"in another order|has names of columns"):
        Federation.from_arrays([(x, Y), (swapped, Y)])
    federation = Federation.from_arrays([(x, Y)] * 2, test=0.0)
    assert federation.inputs.mean == pytest.approx((65, 125))
    with pytest.raises(ValueError, match=r"in another order|has names of columns"):
        federation.inputs.prepare(swapped)


def test_rows_with_other_names_among_them_are_refused():
    with pytest.raises(ValueError, match="row 1 has the columns sbp, age, and row 0 has age, sbp, in another order"):
        column_names([X.iloc[0], X[["sbp", "age"]].iloc[1]])


MASKED = np.ma.masked_equal(np.array([[1.0, 2.0], [3.0, -999.0], [5.0, 6.0], [7.0, 8.0]]), -999)


@pytest.mark.parametrize("x", [MASKED, MASKED.astype(int), list(MASKED), [list(row) for row in MASKED]])
def test_what_lies_behind_a_mask_is_never_used(x):
    federation = Federation.from_arrays([([[0.0, 1.0]] * 4, Y)] * 2)
    run = fit(average(federation), federation, rounds=1)
    doors = {
        "from_arrays": lambda: Federation.from_arrays([(x, Y)]),
        "predict": lambda: run.predict(x),
        "prepare": lambda: federation.inputs.prepare(x),
    }
    for door in doors.values():
        with pytest.raises(ValueError, match=r"x .*NaN or infinite values in 1 of 4 rows .*row 1"):
            door()


def test_masked_labels_are_refused():
    y = np.ma.masked_equal([0, 1, -9, 1], -9)
    with pytest.raises(ValueError, match="y is masked in 1 entries"):
        Federation.from_arrays([(np.zeros((4, 2)), y)])
    with pytest.raises(ValueError, match="y is masked in 1 entries"):
        Federation.from_arrays([(np.zeros((4, 2)), np.ma.array(["a", "b", "a", "b"], mask=[0, 0, 1, 0]))])
    for labels in (["a", float("nan"), "b", "a"], ["a", "  ", "b", "a"], np.array(["a", "", "b", "a"])):
        with pytest.raises(ValueError, match="y has no label in 1 of 4 rows"):
            Federation.from_arrays([(np.zeros((4, 2)), labels)])
    with pytest.raises(ValueError, match=r"y holds .* values; numbers are needed"):
        Federation.from_arrays([(np.zeros((4, 2)), ["a", 1, "b", "a"])])
    for labels in (["a", None, "b", "a"], pd.Series(["a", None, "b", "a"]), pd.array([1, None, 0, 1])):
        with pytest.raises(ValueError, match=r"y has no label in 1 of 4 rows|y is masked in 1 entries"):
            Federation.from_arrays([(np.zeros((4, 2)), labels)])


def test_masks_are_missing_values_where_these_are_allowed():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1)) @ np.ones((1, 3)) + 5 + 0.3 * rng.normal(size=(60, 3))
    gaps = rng.random(x.shape) < 0.2
    holes, masked = np.where(gaps, np.nan, x), np.ma.array(np.where(gaps, -999, x), mask=gaps)
    by_nan, by_mask = (FederatedFactorModel(1, random_state=0).fit(part) for part in (holes, masked))
    assert np.array_equal(by_nan.mean_, by_mask.mean_)
    assert np.array_equal(by_nan.score_samples(holes), by_mask.score_samples(masked))
    assert np.array_equal(by_nan.impute(holes), by_mask.impute(masked))


def test_masks_are_refused_by_estimators_without_missing_values():
    with pytest.raises(ValueError, match="contains NaN"):
        FederatedGaussianMixture(1).fit(MASKED)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 1)), rng.normal(size=40)
    model = FederatedRegressionMixture(1, random_state=0).fit(x, y)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(x, np.ma.array(y, mask=np.arange(40) == 3))
    with pytest.raises(ValueError, match="NaN"):
        model.predict(np.ma.array(x, mask=np.arange(40)[:, None] == 3))


LARGE = 1e9 + np.arange(60.0)[:, None]


def test_values_that_float32_cannot_tell_apart_are_kept():
    assert len(np.unique(LARGE.astype(np.float32))) == 2
    federation = Federation.from_arrays([(LARGE[:30], [0, 1] * 15), (LARGE[30:], [0, 1] * 15)], test=0.0)
    kept = torch.cat([client.train["x"] for client in federation.clients])
    assert len(kept.unique()) == 60
    # Of 1e9 + (0, …, 59): the variance of 0, …, 59
    assert federation.inputs.mean == pytest.approx((1e9 + 29.5,), abs=1e-6)
    assert federation.inputs.std == pytest.approx((np.arange(60).std(),), rel=1e-2)
    asked = federation.inputs.prepare(LARGE)
    assert asked.dtype == torch.float64
    seen = federation.inputs.normalise(asked)[:, 0].numpy()
    np.testing.assert_allclose(np.diff(seen), 1 / federation.inputs.std[0], rtol=1e-6)
    algorithm = average(federation)
    run = fit(algorithm, federation, rounds=2)
    assert len(run.predict(LARGE).values.unique()) > 50
    assert all(leaf.dtype == torch.float32 for leaf in leaves(run.server) if leaf.is_floating_point())


@pytest.mark.parametrize("kind", ["series", "image"])
def test_large_values_are_kept_in_series_and_float_images(kind):
    x = np.broadcast_to(LARGE[:, :, None, None], (60, 2, 3, 3)).copy()
    x = x if kind == "image" else x[:, 0]
    federation = Federation.from_arrays([(x, [0, 1] * 30)], test=0.0, kind=kind)
    assert len(federation.clients[0].train["x"].unique()) == 60


def test_what_float32_holds_stays_float32():
    for x in (np.arange(60.0)[:, None] * 1e9, np.full((60, 1), 1e9), 2020 + LARGE % 7, np.arange(60)[:, None]):
        assert as_stored([x])[0].dtype == np.float32
    assert as_stored([np.zeros((3, 1), np.uint8)])[0].dtype == np.uint8
    with pytest.raises(ValueError, match=r"y holds 1000000000 and others that float32 can't tell apart"):
        Federation.from_arrays([(LARGE, LARGE[:, 0])])


@pytest.mark.parametrize(
    ("ys", "classes"),
    [
        ([[b"sick", b"well"] * 2, ["sick", "well"] * 2], ("sick", "well")),
        ([np.array([b"sick", b"well"] * 2), ["well"] * 4], ("sick", "well")),
        ([np.array(["é".encode(), b"a"] * 2), ["a"] * 4], ("a", "é")),
        ([np.array([0, 2**63] * 2, np.uint64), np.array([-1, 0] * 2)], ("-1", "0", str(2**63))),
        ([np.array([2**53, 2**53 + 1] * 2, np.uint64), np.array([5] * 4)], ("5", str(2**53), str(2**53 + 1))),
        ([[2**70, 2**70 + 1] * 2, [3] * 4], ("3", str(2**70), str(2**70 + 1))),
        ([[True, False] * 2, [1, 2] * 2], ("0", "1", "2")),
    ],
)
@pytest.mark.filterwarnings("ignore:client")
def test_labels_of_any_type_are_told_apart_and_named(ys, classes):
    federation = Federation.from_arrays([(np.zeros((4, 2)), y) for y in ys], test=0.0)
    assert federation.classes == classes
    for client, y in zip(federation.clients, ys, strict=True):
        given = [v.decode() if isinstance(v, bytes) else str(v if isinstance(v, str) else int(v)) for v in list(y)]
        named = [federation.classes[code] for code in client.train["y"]]
        assert named == [given[i] for i in client.truth["train"]["index"]]


@pytest.mark.parametrize("twin", ["sick ", "sick\u00a0", " sick", "sic\u0301k"])
def test_classes_that_look_alike_are_refused(twin):
    alike = "si\u0107k" if "\u0301" in twin else "sick"
    with pytest.raises(ValueError, match="differ by blanks or by the Unicode form of their letters alone"):
        Federation.from_arrays([(np.zeros((2, 2)), [alike, "well"]), (np.zeros((2, 2)), [twin, "well"])])
    with pytest.raises(ValueError, match="differ by blanks"):
        Federation.from_arrays([(np.zeros((2, 2)), [alike, "well"])], classes=[alike, twin, "well"])
    with pytest.raises(ValueError, match="unknown class"):
        Federation.from_arrays([(np.zeros((2, 2)), [twin, "well"])], classes=[alike, "well"])


IMAGES = np.random.default_rng(0).integers(256, size=(6, 3, 5, 5), dtype=np.uint8)
TABLE = np.random.default_rng(0).normal(size=(6, 4))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1],
        lambda x: x[:, ::-1],
        lambda x: np.rot90(x, axes=(-2, -1)) if x.ndim == 4 else x[::-2],
        lambda x: x.astype(x.dtype.newbyteorder(">")),
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(np.longdouble) / 255 if x.ndim == 4 else x.astype(np.longdouble),
        np.flip,
    ],
)
@pytest.mark.parametrize("x", [IMAGES, TABLE], ids=["images", "table"])
def test_memory_of_any_layout_is_read(view, x):
    given = view(x)
    plain = np.array(given.tolist(), np.float64 if given.dtype.kind == "f" else np.uint8)
    y = np.arange(len(given)) % 2
    odd, even = (Federation.from_arrays([(part, y[::-1][::-1])], test=0.0) for part in (given, plain))
    assert torch.equal(odd.clients[0].train["x"], even.clients[0].train["x"])
    assert torch.equal(odd.inputs.prepare(given), even.inputs.prepare(plain))
    if x.ndim == 4:
        assert torch.equal(odd.inputs.prepare(given[0][::-1]), even.inputs.prepare(plain[0][::-1].copy()))


def test_sparse_matrices_get_a_sentence():
    with pytest.raises(ValueError, match=r"is a sparse matrix; .*toarray"):
        Federation.from_arrays([(sparse.eye(4).tocsr(), Y)])
    for odd in (torch.eye(4).to_sparse(), torch.zeros(4, 2, device="meta")):
        with pytest.raises(ValueError, match=r"client 'client-0': x is a tensor .*; dense values are needed"):
            Federation.from_arrays([(odd, Y)])
    with pytest.raises(ValueError, match="client 'client-0': x is None"):
        Federation.from_arrays([(None, Y)])


def test_a_colour_photograph_is_one_query():
    grey = Inputs("image", (1, 8, 8), 255.0, (0.5,), (0.2,))
    photograph = np.random.default_rng(0).integers(256, size=(100, 80, 3), dtype=np.uint8)
    for image in (photograph, photograph.transpose(2, 0, 1), photograph[None]):
        with pytest.raises(ValueError, match="in colour"):
            grey.prepare(image)
    for channels in (2, 4):
        transparent = np.resize(photograph, (100, 80, channels))
        for inputs in (grey, Inputs("image", (3, 8, 8), 255.0, (0.5,) * 3, (0.2,) * 3)):
            for image in (transparent, transparent.transpose(2, 0, 1)):
                with pytest.raises(ValueError, match="an image with transparency, or grey images"):
                    inputs.prepare(image)
            assert inputs.prepare(np.zeros((channels, 8, 8), np.uint8)).shape == (channels, *inputs.shape)
    equal = np.repeat(photograph[..., :1], 3, axis=2)
    assert torch.equal(grey.prepare(equal), grey.prepare(photograph[..., 0]))
    assert grey.prepare(photograph[..., 0]).shape == (1, 1, 8, 8)


def test_federated_em_far_from_zero_is_right_about_a_centre_and_refuses_without():
    """Seconds since 1970, in one Gaussian: the variance is that of the numbers less 1.7e9."""
    x = 1.7e9 + np.random.default_rng(0).normal(size=(400, 1))
    federation = Federation.from_arrays([(x[:150], np.zeros(150)), (x[150:], np.zeros(250))], test=0.0)
    centred = GaussianMixture(1, 1, centre=federation.inputs.mean)
    start = {"weight": torch.ones(1), "mean": torch.tensor([[1.7e9]]), "covariance": torch.ones(1, 1, 1)}
    run = fit(FedEM(centred, start), federation, rounds=3)
    # The family adds a ridge of 1e-6; of float64, 1.7e9 keeps 2e-7
    assert float(run.server["theta"]["covariance"]) == pytest.approx((x - 1.7e9).var(), abs=1e-5)
    for made in (start, KMeansPlusPlus(GaussianMixture(1, 1))):
        with pytest.raises(ValueError, match=r"Give centre=federation\.inputs\.mean"):
            fit(FedEM(GaussianMixture(1, 1), made), federation, rounds=3)
    with pytest.raises(ValueError, match="FactorModel's centre is so far from column 0"):
        fit(FedEM(FactorModel(1, 1), FactorModel(1, 1, centre=(1.7e9,)).initial(keys.key(0))), federation, rounds=1)


def test_names_of_bytes_are_text():
    x, y = np.zeros((4, 2)), [b"sick", b"well"] * 2
    federation = Federation.from_arrays([(x, y)], names=[b"Nice"], classes=[b"well", b"sick"], test=0.0)
    assert [client.name for client in federation.clients] == ["Nice"]
    assert federation.classes == ("well", "sick")
    rng = np.random.default_rng(0)
    assert FederatedGaussianMixture(1).fit({b"Nice": rng.normal(size=(9, 1))}).client_names_ == ["Nice"]
