"""Federations of natural clients: whose examples they are, how they're split, and that nothing is copied."""

import warnings
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from archipel import classification
from archipel.data.natural import natural
from archipel.data.sources.leaf import femnist
from archipel.data.sources.scikit import digits
from archipel.data.sources.source import Source
from archipel.data.sources.uci import hapt, heart_disease
from archipel.data.sources.unmarked import crossbill


def tiny(sizes=(5, 9, 7), shape=(4, 4), shuffled=False, classes=3, **parts):
    """Images that hold their row in the source as first pixels; classes in turn."""
    n = sum(sizes)
    x = torch.randint(256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x.view(n, -1)[:, 0], x.view(n, -1)[:, 1] = torch.arange(n) % 256, torch.arange(n) // 256
    client = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    client = client[torch.randperm(n, generator=torch.Generator().manual_seed(1))] if shuffled else client
    given = {"client": client, "client_names": tuple(f"c{i}" for i in range(len(sizes)))} | parts
    names = tuple("abcdefgh"[:classes])
    return Source(x, torch.arange(n) % classes, names, "tiny", "", "", "", **given)


def row_of(x):
    first = x.flatten(1).long()
    return first[:, 0] + 256 * first[:, 1]


def storages(federation, column):
    parts = [columns[column] for client in federation.clients for columns in client.splits.values()]
    return {values.untyped_storage().data_ptr() for values in parts}


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("by_loader", [False, True])
@pytest.mark.parametrize(("test", "validation"), [(None, 0.0), (0.3, 0.2), (0.0, 0.0)])
def test_every_client_holds_its_own_examples_once(shuffled, by_loader, test, validation):
    source = tiny(shuffled=shuffled, extra={"age": torch.arange(21) * 2})
    load = partial(tiny, shuffled=shuffled, extra={"age": torch.arange(21) * 2})
    federation = natural(load if by_loader else source, test=test, validation=validation)
    assert federation.inputs.shape == (1, 4, 4)
    for i, client in enumerate(federation.clients):
        rows = torch.cat([truth["index"] for truth in client.truth.values()])
        assert sorted(rows.tolist()) == torch.nonzero(source.client == i).flatten().tolist()
        assert (client.validation is None) == (validation == 0)
        for split, columns in client.splits.items():
            index = client.truth[split]["index"]
            assert torch.equal(columns["x"], source.x[index].unsqueeze(1))
            assert torch.equal(columns["y"], source.y[index])
            assert torch.equal(client.truth[split]["age"], 2 * index)
            share = {"test": 0.3 if test is None else test, "validation": validation}
            expected = len(rows) * share.get(split, 1 - sum(share.values()))
            assert len(index) == pytest.approx(expected, abs=1)


def test_a_source_is_left_as_it_was():
    source = tiny()
    natural(source)
    assert row_of(source.x).tolist() == list(range(21))


def test_thousands_of_clients_share_one_array():
    made = []

    def load():
        made.append(tiny([5] * 3600, classes=2))
        return made[0]

    federation = natural(load, validation=0.2)
    source = made[0]
    assert len(federation) == 3600
    for column, whole in (("x", source.x), ("y", source.y)):
        assert storages(federation, column) == {whole.untyped_storage().data_ptr()}
        first, last = whole.data_ptr(), whole.data_ptr() + whole.nbytes
        parts = [columns[column] for client in federation.clients for columns in client.splits.values()]
        spans = sorted((part.data_ptr(), part.data_ptr() + part.nbytes) for part in parts)
        # Together they cover the source's memory, and no two overlap.
        assert spans[0][0] == first
        assert spans[-1][1] == last
        assert all(stop == start for (_, stop), (start, _) in pairwise(spans))
    assert sorted(torch.cat([row_of(c["x"]) for k in federation.clients for c in k.splits.values()]).tolist()) == list(
        range(18_000)
    )


def test_without_test_examples_a_source_is_shared_as_it_is():
    source = tiny()
    federation = natural(source, test=0.0)
    assert storages(federation, "x") == {source.x.untyped_storage().data_ptr()}


def test_a_copy_is_one_array_for_all():
    federation = natural(tiny(shuffled=True))
    assert len(storages(federation, "x")) == len(storages(federation, "y")) == 1


def test_the_publishers_test_examples_are_kept():
    own = torch.arange(21) % 4 == 1
    source = tiny(test=own)
    for validation in (0.0, 0.2):
        federation = natural(source, validation=validation)
        for client in federation.clients:
            assert bool(own[client.truth["test"]["index"]].all())
            assert not own[client.truth["train"]["index"]].any()
            if validation:
                count = sum(len(columns["y"]) for columns in client.splits.values())
                assert len(client.validation["y"]) == pytest.approx(0.2 * count, abs=0.5)
                assert not own[client.truth["validation"]["index"]].any()
    other = natural(source, test=0.3)
    assert not all(bool(own[client.truth["test"]["index"]].all()) for client in other.clients)


def test_the_seed_determines_the_splits_and_other_clients_do_not():
    first, again, other = natural(tiny()), natural(tiny), natural(tiny(), seed=1)
    assert first.fingerprint == again.fingerprint  # also by loader
    assert first.fingerprint != other.fingerprint
    limited = natural(tiny(), limit=2)
    assert [client.name for client in limited.clients] == ["c0", "c1"]
    large = natural(tiny(), minimum=6)
    assert [client.name for client in large.clients] == ["c1", "c2"]
    for few in (limited, large):
        for client in few.clients:
            (same,) = [c for c in first.clients if c.name == client.name]
            assert torch.equal(client.truth["test"]["index"], same.truth["test"]["index"])
            assert torch.equal(client.train["x"], same.train["x"])


def in_a_file(source, folder):
    np.save(folder / "x.npy", source.x.numpy())
    mapped = np.load(folder / "x.npy", mmap_mode="c")
    return replace(source, x=torch.from_numpy(np.asarray(mapped)), file=folder / "x.npy")


@pytest.mark.parametrize("by_loader", [False, True])
def test_a_source_in_a_file_stays_in_a_file(tmp_path, by_loader):
    source = in_a_file(tiny(), tmp_path)
    federation = natural((lambda: source) if by_loader else source)
    assert federation.fingerprint == natural(tiny()).fingerprint
    assert [file.name for file in tmp_path.iterdir()] == ["x.npy"]
    assert np.array_equal(np.load(tmp_path / "x.npy"), tiny().x.numpy())
    # The kernel knows where memory comes from: each array lies in a mapping of a file in the folder.
    for client in federation.clients:
        address = client.train["x"].data_ptr()
        with open("/proc/self/maps") as maps:
            spans = [line.split(maxsplit=5) for line in maps]
        (origin,) = [
            span[5] for span in spans if int(span[0].split("-")[0], 16) <= address < int(span[0].split("-")[1], 16)
        ]
        assert origin.startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (digits, {}, "digits has no clients of its own. Divide it"),
        (tiny, {"limit": 0}, "limit is 0"),
        (tiny, {"minimum": 10}, "tiny has no client with 10 examples; the largest has 9"),
        (tiny, {"test": 1.0}, "test is 1.0"),
        (tiny, {"seed": -1}, "seed is -1"),
        (tiny, {"missing": "drop"}, "missing is 'drop'; it is refuse or keep"),
        (partial(tiny, (1, 9)), {}, "client 'c0' holds 1 example, too few to be split"),
        (lambda: replace(tiny(), classes=("a", "b", "c", "d")), {}, "tiny: no client has an example of class 'd'"),
        (partial(tiny, test=torch.arange(21) < 5), {}, "client 'c0' holds 0 examples"),
    ],
)
def test_what_cannot_be_done_is_said(source, options, message):
    with pytest.raises(ValueError, match=message):
        natural(source, **options)


def test_femnist_writers_are_disjoint_and_fit_a_lenet(data_dir):
    from archipel.models.registry import build

    federation = natural(partial(femnist, data_dir), limit=20)
    assert len(federation) == 20
    assert federation.inputs.shape == (1, 28, 28)
    assert federation.clients[0].train["x"].dtype == torch.uint8
    rows = [torch.cat([truth["index"] for truth in client.truth.values()]) for client in federation.clients]
    assert len(torch.cat(rows).unique()) == sum(map(len, rows))
    with np.load(data_dir / "femnist-200.npz") as file:
        assert list(map(len, rows)) == file["examples_per_writer"][:20].tolist()
    lenet = build("lenet", federation.inputs.shape, 8)
    assert lenet(federation.inputs.normalise(federation.clients[0].train["x"][:3])).shape == (3, 8)


def test_hospitals_are_standardised_over_all_of_them(data_dir):
    federation = natural(partial(heart_disease, data_dir, missing="drop-columns"))
    assert [client.name for client in federation.clients] == ["cleveland", "hungarian", "switzerland", "va"]
    pooled = federation.inputs.normalise(torch.cat([client.train["x"] for client in federation.clients]))
    assert pooled.mean(0).abs().max() < 1e-5
    assert pooled.std(0, correction=0).sub(1).abs().max() < 1e-5
    assert set(federation.clients[0].truth["test"]) == {"index", "level", "missing"}
    with pytest.raises(ValueError, match=r"heart-disease has missing values in \d+ of 920 examples.*impute-median"):
        natural(partial(heart_disease, data_dir))


def test_people_hold_series_in_half_precision(data_dir):
    federation = natural(partial(hapt, data_dir), limit=3)
    assert federation.inputs.kind == "series"
    assert federation.inputs.shape == (128, 6)
    assert federation.clients[0].train["x"].dtype == torch.float16
    assert federation.inputs.normalise(federation.clients[0].train["x"]).dtype == torch.float32


def test_gaps_may_be_kept(data_dir):
    with pytest.raises(ValueError, match="crossbill has missing values"):
        natural(partial(crossbill, data_dir))
    federation = natural(partial(crossbill, data_dir), missing="keep")
    assert len(federation) == 4
    assert bool(torch.isnan(federation.clients[0].train["x"]).any())


def test_networks_on_missing_values_are_warned_of(data_dir):
    holes = natural(heart_disease(data_dir), missing="keep")
    assert holes.inputs.missing
    with pytest.warns(UserWarning, match=r"missing values .*Impute them before"):
        classification(torch.nn.Linear(13, 2), holes)
    whole = natural(heart_disease(data_dir, missing="impute-median"))
    assert not whole.inputs.missing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classification(torch.nn.Linear(13, 2), whole)
