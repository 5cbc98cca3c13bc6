"""Composed shifts: what the truth records is enough to make the data again, and nothing gets mixed up."""

import numpy as np
import pytest
import torch

from archipel import Federation
from archipel.data.divide import divide, latent_components
from archipel.data.dual_heterogeneity import dual_heterogeneity
from archipel.data.partitions.by_name import make_partition
from archipel.data.pixels import resize
from archipel.data.shifts.colours import Hue, feddrm
from archipel.data.shifts.compose import SHIFTS, compose, make_shift
from archipel.data.shifts.feature_shifts import Affine, Missing
from archipel.data.shifts.image_shifts import Brightened, Cast, Coloured, Inverted, Rotated
from archipel.data.shifts.label_shifts import Keep, NoisyLabels, PermuteLabels
from archipel.data.shifts.transforms import client_casts, grey_to_rgb
from archipel.data.sources.scikit import digits
from archipel.data.sources.source import Source

SOURCE = digits()
OPTIONS = {
    "permute-labels": {"permutation": (1, 2, 3, 4, 5, 6, 7, 8, 9, 0)},
    "noisy-labels": {"rate": 0.4, "classes": 10},
    "keep": {"fraction": 0.5},
    "coloured": {},
    "inverted": {"channels": "green"},
    "cast": {"colour": "red"},
    "brightened": {"edge": "left"},
    "rotated": {"degrees": 20},
    "blurred": {"sigma": 0.7},
    "brightness": {"gain": 0.5},
    "contrast": {"gain": 2.0},
    "gamma": {"gamma": 0.6},
    "saturation": {"gain": 0.5},
    "hue": {"turn": 0.2},
}


def federation(clients=3, components=2, validation=0.1) -> Federation:
    parts = make_partition("dirichlet", SOURCE.y, clients, alpha=1.0)
    divided = compose(divide(SOURCE, parts, validation=validation), clients=[[Coloured(), Cast("blue")]] * clients)
    return latent_components(divided, components)


def tables(n=300, clients=2) -> Federation:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return Federation.from_arrays([(x + i, torch.arange(n) % 3) for i in range(clients)])


def original(index):
    return Cast("blue").change(grey_to_rgb(SOURCE.x[index]))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("where", ["clients", "components"])
def test_labels_match_images_after_every_shift(name, where):
    shift = make_shift(name, **OPTIONS[name])
    plan = {"clients": [[shift], [], [shift]]} if where == "clients" else {"components": [[[], [shift]]] * 3}
    before = federation()
    after = compose(before, **plan)
    for i, client in enumerate(after.clients):
        for split, columns in client.splits.items():
            truth = client.truth[split]
            shifted = (
                truth["component"] == 1 if where == "components" else torch.full_like(truth["component"] > 0, i != 1)
            )
            # The rows are the source's, and so is the label that the truth records.
            assert torch.equal(truth["label"], SOURCE.y[truth["index"]])
            x = original(truth["index"])
            if name not in ("permute-labels", "noisy-labels", "keep"):
                x = torch.where(shifted[:, None, None, None], shift.change(x), x)
            assert torch.equal(columns["x"], x)
            y = truth["label"]
            if name == "permute-labels":
                y = torch.where(shifted, torch.tensor(shift.permutation)[y], y)
            if name == "noisy-labels" and "noisy" in truth:
                assert torch.equal(truth["noisy"], columns["y"] != y)
                assert not truth["noisy"][~shifted].any()
            else:
                assert torch.equal(columns["y"], y)
            if name == "keep":
                held = before.clients[i].truth[split]
                kept = sum(torch.isin(held["index"], truth["index"]) & ~(held["component"] == 1))
                assert where == "clients" or kept == (held["component"] == 0).sum()
            else:
                assert torch.equal(truth["index"], before.clients[i].truth[split]["index"])


def test_every_shift_for_images_is_tested():
    assert set(SHIFTS) == {*OPTIONS, "affine", "missing"}


def test_the_record_makes_the_same_federation_again():
    before, noise = tables(), NoisyLabels(0.2, 3)
    once = compose(before, clients=[[Affine(2.0), noise, Missing(0.1, 0.0)], [noise, PermuteLabels((2, 0, 1))]])

    def remade(record):
        return [make_shift(step["shift"], **{k: v for k, v in step.items() if k != "shift"}) for step in record]

    again = compose(before, clients=[remade(record) for record in once.truth["shifts"]])
    assert again.fingerprint == once.fingerprint != before.fingerprint


def test_dual_heterogeneity_is_a_composition():
    dual = dual_heterogeneity(SOURCE, clients=5, seed=2)
    big = Source(**{**vars(SOURCE), "x": resize(SOURCE.x[:, None], 16, 16)[:, 0]})
    parts = [torch.cat([t["index"] for t in client.truth.values()]).sort().values.numpy() for client in dual.clients]
    plain = divide(big, parts)
    # The same rows in the same splits, with the components that dual heterogeneity drew.
    clients = []
    for ours, theirs in zip(plain.clients, dual.clients, strict=True):
        columns = {s: {"x": big.x[t["index"]][:, None], "y": t["label"]} for s, t in theirs.truth.items()}
        clients.append(type(ours)(ours.name, **columns, truth=theirs.truth))
    plain = Federation("digits", tuple(clients), plain.inputs, plain.classes)
    looks = []
    for i in range(5):
        colour, vertical, horizontal = client_casts(i)
        looks.append([Coloured(), Cast(colour), Brightened(vertical), Brightened(horizontal)])
    permutations = dual.truth["permutations"].tolist()
    concept = [[[PermuteLabels(tuple(p[0]))], [Inverted(), PermuteLabels(tuple(p[1]))]] for p in permutations]
    composed = compose(plain, components=concept, clients=looks)
    assert composed.fingerprint == dual.fingerprint
    assert composed.inputs == dual.inputs


def test_a_clients_shifts_do_not_depend_on_who_else_is_there():
    before, shifts = tables(clients=3), [NoisyLabels(0.3, 3), Missing(0.2), Keep(0.5)]
    alone = compose(before.hold_out(["client-1"])[1], clients=[shifts]).clients[0]
    among = compose(before, clients=[[], shifts, [Affine(2.0)]]).clients[1]
    for split, columns in alone.splits.items():
        assert torch.equal(columns["y"], among.splits[split]["y"])
        assert torch.equal(columns["x"].nan_to_num(), among.splits[split]["x"].nan_to_num())


def test_two_calls_draw_anew_and_the_seed_decides():
    before = tables()
    noise = [[NoisyLabels(0.5, 3)]] * 2
    once = compose(before, clients=noise)
    twice = compose(once, clients=noise)
    flips = [one.clients[0].train["y"] != other.clients[0].train["y"] for one, other in ((before, once), (once, twice))]
    assert not torch.equal(*flips)
    assert compose(before, clients=noise).fingerprint == once.fingerprint
    assert compose(before, clients=noise, seed=1).fingerprint != once.fingerprint
    assert [len(record) for record in twice.truth["shifts"]] == [2, 2]
    assert torch.equal(twice.clients[0].truth["train"]["clean"], before.clients[0].train["y"])


def test_the_hash_is_the_same_on_any_number_of_threads():
    def made():
        plan = [[*feddrm(i), Rotated(15), Hue(0.3), make_shift("blurred", sigma=0.8)] for i in range(3)]
        return compose(federation(), clients=plan).fingerprint

    threads = torch.get_num_threads()
    try:
        hashes = set()
        for number in (1, 3):
            torch.set_num_threads(number)
            hashes.add(made())
    finally:
        torch.set_num_threads(threads)
    assert len(hashes) == 1


def test_noise_for_training_alone():
    before = tables()
    after = compose(before, clients=[[NoisyLabels(1.0, 3)]] * 2, splits=("train",))
    assert torch.equal(after.clients[0].test["y"], before.clients[0].test["y"])
    assert (after.clients[0].train["y"] != before.clients[0].train["y"]).all()
    assert after.truth["shifts"][0] == [{"shift": "noisy-labels", "rate": 1.0, "classes": 3, "splits": ["train"]}]


def test_inputs_are_fitted_to_what_is_there():
    after = compose(tables(), clients=[[Missing(0.3)], [Affine(3.0, (0.0, 1.0, 2.0)), Missing(0.5, features=(0,))]])
    pooled = np.concatenate([client.train["x"].double().numpy() for client in after.clients])
    assert np.isnan(pooled).any()
    # Sums of squares in double precision from float32 values: far better than 1e-6.
    assert after.inputs.mean == pytest.approx(np.nanmean(pooled, axis=0), rel=1e-6)
    assert after.inputs.std == pytest.approx(np.nanstd(pooled, axis=0), rel=1e-6)


def test_tests_are_filled_with_the_training_mean():
    after = compose(tables(), clients=[[Missing(0.3, "mean")]] * 2).clients[1]
    mask, known = after.truth["test"]["missing"], after.truth["train"]["missing"]
    for j in range(3):
        kept = after.train["x"][~known[:, j], j].double().mean()
        assert after.test["x"][mask[:, j], j].numpy() == pytest.approx(float(kept), rel=1e-5)  # float32


def test_components_are_drawn_from_their_weights():
    made = latent_components(divide(SOURCE, make_partition("iid", SOURCE.y, 4)), 3, alpha=5.0, seed=1)
    for weights, realised, client in zip(made.truth["weights"], made.truth["realised"], made.clients, strict=True):
        drawn = torch.cat([columns["component"] for columns in client.truth.values()])
        assert torch.equal(torch.bincount(drawn, minlength=3) / len(drawn), realised)
        # Multinomial: sd √(π(1−π)/n) each; four sd.
        assert ((realised - weights).abs() < 4 * (weights * (1 - weights) / len(drawn)).sqrt()).all()


def test_classes_that_nobody_has_are_named():
    some = np.flatnonzero(SOURCE.y.numpy() < 8)
    with pytest.warns(UserWarning, match="2 classes are at no client: 8, 9"):
        divide(SOURCE, np.array_split(some, 2))


def test_tables_and_regressions_divide_too():
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    source = Source(x, x.sum(1), (), "sums", "", "", "", kind="table")
    made = divide(source, make_partition("quantity", range(30), 2, exponent=1.0))
    assert made.classes is None
    client = made.clients[0]
    assert torch.equal(client.train["y"], source.y[client.truth["train"]["index"]])
    assert "label" not in client.truth["train"]
    with pytest.raises(ValueError, match="'sums' is a regression; it has no labels to change"):
        compose(made, clients=[[NoisyLabels(0.1, 2)], []])


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"clients": [[]]}, "clients has 1 entries for 3 clients"),
        ({"components": [[]] * 2}, "components has 2 entries for 3 clients"),
        ({"clients": [[]] * 3, "splits": ("tests",)}, "splits names 'tests'"),
        ({"clients": [[PermuteLabels((1, 0))], [], []]}, "permutation has 2; 'digits' has 10 classes"),
        ({"clients": [[Affine(2.0)], [], []]}, "is for tables and series; 'digits' holds images"),
    ],
)
def test_plans_that_do_not_fit_are_refused(plan, message):
    with pytest.raises(ValueError, match=message):
        compose(federation(), **plan)


def test_shapes_that_part_are_refused():
    grey = latent_components(divide(SOURCE, make_partition("iid", SOURCE.y, 2)), 2)
    with pytest.raises(ValueError, match=r"client 'client-1' ends with examples of shape \(1, 8, 8\)"):
        compose(grey, clients=[[Coloured()], []])
    with pytest.raises(ValueError, match="component 1 ends with examples of shape"):
        compose(grey, components=[[[], [Coloured()]]] * 2)
    with pytest.raises(ValueError, match="client 'client-0' has no components"):
        compose(tables(), components=[[[Affine(2.0)]], []])


def test_fractions_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"test \+ validation is 1.1"):
        divide(SOURCE, make_partition("iid", SOURCE.y, 2), test=0.6, validation=0.5)
    with pytest.raises(ValueError, match="client-1 holds 1 example, too few"):
        divide(SOURCE, [np.arange(10), np.arange(10, 11)])
