"""Dual heterogeneity: the recorded truth explains the data, and each draw follows its law."""

import numpy as np
import pytest
import torch

from archipel.data.dual_heterogeneity import dual_heterogeneity, oracle_view
from archipel.data.sources.scikit import digits
from archipel.data.sources.source import Source


@pytest.fixture(scope="module")
def federation(fashion):
    return dual_heterogeneity(fashion, seed=0)


def truth(federation, column):
    """A column of the truth, per client over all its splits."""
    return [torch.cat([columns[column] for columns in client.truth.values()]) for client in federation.clients]


def test_seventy_thousand_images_each_at_one_client_in_one_split(federation):
    assert federation.inputs.shape == (3, 28, 28)
    assert torch.equal(torch.cat(truth(federation, "index")).sort().values, torch.arange(70_000))
    for client in federation.clients:
        train, test = len(client.train["y"]), len(client.test["y"])
        assert abs(test - 0.3 * (train + test)) <= 0.5
        assert client.train["x"].shape == (train, 3, 28, 28)
        assert client.train["x"].dtype == torch.uint8


def test_labels_are_the_sources_permuted_by_client_and_component(federation, fashion):
    permutations = federation.truth["permutations"]
    assert permutations.shape == (8, 2, 10)
    assert torch.equal(permutations.sort(-1).values, torch.arange(10).expand(8, 2, 10))
    assert len({tuple(row.tolist()) for row in permutations.flatten(0, 1)}) == 16
    for i, client in enumerate(federation.clients):
        for split, columns in client.splits.items():
            known = client.truth[split]
            assert torch.equal(known["label"], fashion.y[known["index"]])
            assert torch.equal(columns["y"], permutations[i, known["component"], known["label"]])


def test_images_are_the_sources_transformed(federation, fashion):
    # Written again in NumPy, from the description: inversion, gains, two ramps from 50 to 0, clipped at 255.
    ramp = np.floor(50 * np.arange(27, -1, -1) / 27 + 0.5)
    for i, client in enumerate(federation.clients):
        known = client.truth["train"]
        grey = fashion.x[known["index"]].numpy().astype(np.float64)[:200]
        inverted = np.where(known["component"][:200, None, None] == 1, 255 - grey, grey)
        gains = (50, 75, 100) if i >= 4 else (100, 75, 50)
        vertical = ramp[::-1] if i in (2, 3, 6, 7) else ramp
        horizontal = ramp[::-1] if i % 2 else ramp
        cast = np.stack([np.floor(inverted * gain / 100 + 0.5) for gain in gains], axis=1)
        expected = np.minimum(cast + vertical[:, None] + horizontal, 255)
        assert np.array_equal(client.train["x"][:200].numpy(), expected)
        assert federation.truth["transforms"][i] == (
            "blue" if i >= 4 else "red",
            "bottom" if i in (2, 3, 6, 7) else "top",
            "right" if i % 2 else "left",
        )


def test_components_are_drawn_from_the_weights_whatever_the_label(federation):
    weights = federation.truth["weights"]
    assert weights.sum(1) == pytest.approx(np.ones(8))
    for i, (component, label) in enumerate(
        zip(truth(federation, "component"), truth(federation, "label"), strict=True)
    ):
        share, deviation = weights[i, 1].item(), (weights[i, 0] * weights[i, 1]).sqrt().item()
        assert federation.truth["realised"][i, 1] == pytest.approx((component == 1).float().mean().item(), abs=1e-6)
        assert (component == 1).float().mean() == pytest.approx(share, abs=4 * deviation / len(component) ** 0.5)
        for k in range(10):
            of_class = component[label == k]
            # 80 comparisons: 4.5 sd are passed by chance once in 2000 runs; the seed is fixed anyway.
            assert (of_class == 1).float().mean() == pytest.approx(share, abs=4.5 * deviation / len(of_class) ** 0.5)


def test_inputs_are_fitted_on_training_images_only(federation):
    assert federation.inputs.scale == 255
    # All images have as many pixels: the mean of the images' means is that of the pixels.
    means = torch.cat([client.train["x"].flatten(2).float().mean(2) for client in federation.clients]) / 255
    assert len(means) == int(federation.sizes.sum())
    assert federation.inputs.mean == pytest.approx(means.double().mean(0).tolist(), abs=1e-6)


def test_weights_follow_their_dirichlet():
    # π_i1 ~ Beta(α, α): mean 1/2, variance 1/(4(2α+1)) = 1/20 for α = 2. Over 600 clients: sd of the mean 0.009, and of
    # the variance (1/20)·√((κ−1)/600) with κ = 15/7, that is 4.4 %.
    weights = dual_heterogeneity(tiny(1800), clients=600, alpha_inter=1e6, alpha_intra=2.0).truth["weights"][:, 1]
    assert weights.mean() == pytest.approx(0.5, abs=4 * 0.009)
    assert weights.var() == pytest.approx(1 / 20, rel=4 * 0.044)


def tiny(n=200, classes=5, shape=(16, 16)):
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.integers(256, size=(n, *shape)), dtype=torch.uint8), torch.arange(n) % classes
    return Source(x, y, tuple("abcde"[:classes]), "tiny", "", "", "")


def test_same_seed_same_bits_and_other_seeds_differ():
    first, again, other = (dual_heterogeneity(digits(), seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert not torch.equal(first.truth["permutations"], other.truth["permutations"])
    assert not torch.equal(first.truth["weights"], other.truth["weights"])
    assert [*map(len, truth(first, "index"))] != [*map(len, truth(other, "index"))]


def test_each_purpose_has_a_stream_of_its_own():
    usual = dual_heterogeneity(digits(), seed=0)
    mixed = dual_heterogeneity(digits(), seed=0, alpha_intra=0.1)
    assert all(map(torch.equal, truth(usual, "index"), truth(mixed, "index")))
    assert torch.equal(usual.truth["permutations"], mixed.truth["permutations"])
    assert not torch.equal(usual.truth["weights"], mixed.truth["weights"])
    skewed = dual_heterogeneity(digits(), seed=0, alpha_inter=0.1)
    assert torch.equal(usual.truth["weights"], skewed.truth["weights"])
    more = dual_heterogeneity(digits(), seed=0, components=3)
    assert torch.equal(usual.truth["permutations"], more.truth["permutations"][:, :2])


def test_validation_is_cut_from_training_and_leaves_the_test_part():
    usual, held_out = dual_heterogeneity(digits()), dual_heterogeneity(digits(), validation=0.1)
    for client, other in zip(usual.clients, held_out.clients, strict=True):
        assert torch.equal(client.test["x"], other.test["x"])
        parts = torch.cat([other.truth["train"]["index"], other.truth["validation"]["index"]])
        assert torch.equal(client.truth["train"]["index"].sort().values, parts.sort().values)
        assert len(other.validation["y"]) == pytest.approx(0.1 * len(parts) / 0.7, abs=1)


@pytest.mark.parametrize("components", [1, 2, 3, 5])
def test_any_number_of_components(components):
    federation = dual_heterogeneity(tiny(), clients=3, components=components)
    drawn = torch.cat(truth(federation, "component"))
    assert set(drawn.tolist()) <= set(range(components))
    assert federation.truth["weights"].shape == (3, components)
    assert federation.truth["realised"].sum(1).tolist() == pytest.approx([1.0] * 3)
    assert federation.truth["permutations"].shape == (3, components, 5)


def test_sizes_and_colour_images():
    assert dual_heterogeneity(digits(), clients=2).inputs.shape == (3, 16, 16)
    assert dual_heterogeneity(digits(), clients=2, size=28).inputs.shape == (3, 28, 28)
    colour = tiny(shape=(3, 16, 16))
    federation = dual_heterogeneity(colour, clients=2, alpha_intra=1e6)
    client = federation.clients[0]
    known = client.truth["train"]
    # At the bottom right, client 0 (red, top, left) adds nothing: red is the source's, green 0.75 of it or its inverse.
    corner, source = client.train["x"][:, :, -1, -1].double(), colour.x[known["index"]][:, :, -1, -1].double()
    assert torch.equal(corner[:, 0], source[:, 0])
    green = torch.where(known["component"] == 1, 255 - source[:, 1], source[:, 1])
    assert (corner[:, 1] - 0.75 * green).abs().max() <= 0.5 + 1e-6


def test_more_than_eight_clients_reuse_the_transforms():
    transforms = dual_heterogeneity(tiny(), clients=10).truth["transforms"]
    assert transforms[8:] == transforms[:2]
    assert len(set(transforms)) == 8


def test_the_oracle_sees_all_examples_with_their_own_labels():
    federation = dual_heterogeneity(digits(), clients=4)
    train, test = oracle_view(federation)
    assert len(train["y"]) == int(federation.sizes.sum())
    assert len(train["y"]) + len(test["y"]) == 1797
    undone = federation.truth["permutations"][train["client"], train["component"], train["y"]]
    assert torch.equal(undone, torch.cat([client.train["y"] for client in federation.clients]))
    assert torch.equal(test["x"], torch.cat([client.test["x"] for client in federation.clients]))
    # The pooled labels are the source's again: as many of each class.
    assert torch.equal(torch.cat([train["y"], test["y"]]).bincount(), digits().y.bincount())


def test_an_oracle_needs_the_truth():
    from archipel.data.federation import Federation

    plain = Federation.from_arrays([(np.zeros((6, 2)), [0, 1] * 3)])
    with pytest.raises(ValueError, match="federations with them come from dual_heterogeneity"):
        oracle_view(plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients is 0"),
        ({"components": 0}, "components is 0"),
        ({"alpha_inter": 0.0}, "alpha is 0.0"),
        ({"alpha_intra": -1.0}, "alpha_intra is -1.0"),
        ({"test": 1.0}, "test is 1.0"),
        ({"size": 0}, "size is 0"),
        ({"seed": -3}, "seed is -3"),
        ({"clients": 150}, "200 examples can't give 150 clients 2 each"),
        ({"source": Source(torch.zeros(4, 7), torch.zeros(4), ("a",), "table", "", "", "")}, "transforms uint8 images"),
    ],
)
def test_bad_arguments_are_refused_with_advice(options, message):
    with pytest.raises(ValueError, match=message):
        dual_heterogeneity(**{"source": tiny(), **options})
