"""Dual heterogeneity: clients that differ from one another, and are mixtures within, with the truth on record.

Source: the FedSPM paper, Sec. 3.1 and App. D.2. Its transforms: `archipel.data.shifts.transforms`.
"""

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from archipel.data.client import Client, Columns
from archipel.data.federation import Federation
from archipel.data.partitions.splits import check_fractions, dirichlet_by_class, train_test_split
from archipel.data.pixels import resize
from archipel.data.shifts.transforms import client_casts, client_transform, component_transform, grey_to_rgb
from archipel.data.sources.source import Source

# Smaller images are enlarged to this: twice the digits' 8×8, whose bilinear weights are exact, and the least that two
# 5×5 convolutions with pooling accept. More pixels would cost time and add no information.
SMALLEST = 16


class Stream(IntEnum):
    """The purposes of random streams. Each has a stream of its own, so that one part can change without the others."""

    PARTITION = 0
    WEIGHTS = 1
    COMPONENTS = 2
    PERMUTATIONS = 3
    SPLIT = 4


def dual_heterogeneity(
    source: Source,
    *,
    clients: int = 8,
    components: int = 2,
    alpha_inter: float = 1.0,
    alpha_intra: float = 2.0,
    test: float = 0.3,
    validation: float = 0.0,
    size: int | None = None,
    seed: int = 0,
) -> Federation:
    """Divide a source over clients that differ in labels and appearance, and so do the components of each client.

    1. Every class goes to the m clients in proportions from Dirichlet(α_inter).
    2. Client i draws mixing weights π_i from Dirichlet(α_intra). Each of its examples draws a component c from π_i,
       independently of its label, so that P_i = Σ_c π_ic P_ic is sampled as it is written.
    3. The component transform, then the client transform change the image (covariate shift); a random permutation of
       the classes for each (i, c) changes the label, y = permutations[i, c, label] (concept shift).
    4. Each client's examples are divided at random into training, validation and test examples.

    Args:
        source: grey images (n, H, W) or colour images (n, 3, H, W), uint8.
        clients: m; above 8, transforms repeat.
        components: C in each client; odd ones are inverted.
        alpha_inter: α_inter > 0; small: clients hold few classes and differ in size.
        alpha_intra: α_intra > 0; small: one component prevails.
        test: fraction of each client's examples for testing.
        validation: fraction for validation, cut from the rest.
        size: height and width in pixels; the source's own, or 16 where that's smaller, if not given.
        seed: what determines everything.

    Returns:
        A federation of (3, size, size) uint8 images. Its truth holds "transforms", m tuples of words; "permutations"
        (m, C, K) int64; "weights" (m, C), the π drawn, and "realised" (m, C), the fractions drawn; each client's truth
        has the columns "component", "label" and "index" of every split.

    Raises:
        ValueError: an argument out of range, a source that isn't images, or too few examples.

    >>> from archipel.data.sources.scikit import digits
    >>> federation = dual_heterogeneity(digits(), clients=4)
    >>> federation.inputs.shape, int(federation.sizes.sum())
    ((3, 16, 16), 1258)
    >>> client = federation.clients[0]
    >>> component, label = client.truth["train"]["component"], client.truth["train"]["label"]
    >>> bool((federation.truth["permutations"][0][component, label] == client.train["y"]).all())
    True
    """
    check_fractions(test, validation)
    _check(source, clients, components, alpha_intra, size, seed)
    images = sized(source, size)
    least = 1 + (test > 0) + (validation > 0)
    parts = dirichlet_by_class(source.y.numpy(), clients, alpha_inter, stream(seed, Stream.PARTITION), minimum=least)
    weights = np.stack([draw_weights(seed, i, components, alpha_intra) for i in range(clients)])
    permutations = torch.stack([draw_permutations(seed, i, components, len(source.classes)) for i in range(clients)])
    made, realised = [], []
    for i, part in enumerate(parts):
        index = torch.from_numpy(part)
        component = draw_components(seed, i, len(part), weights[i])
        realised.append(torch.bincount(component, minlength=components) / len(part))
        rows = train_test_split(len(part), test, validation, stream(seed, Stream.SPLIT, i), f"client-{i}")
        columns: dict[str, Columns] = {}
        truth: dict[str, Columns] = {}
        for split, chosen in rows.items():
            row, c = index[chosen], component[chosen]
            label = source.y[row]
            columns[split] = {"x": dual_transform(images[row], c, i), "y": permutations[i][c, label]}
            truth[split] = {"component": c, "label": label, "index": row}
        made.append(Client(f"client-{i}", **columns, truth=truth))
    return Federation(
        name=f"{source.name}, dual heterogeneity",
        clients=tuple(made),
        inputs=source.fit_inputs(made),
        classes=source.classes,
        truth={
            "transforms": tuple(client_casts(i) for i in range(clients)),
            "permutations": permutations,
            "weights": torch.from_numpy(weights),
            "realised": torch.stack(realised),
        },
    )


def sized(source: Source, size: int | None = None) -> Tensor:
    """Bring a source's images to (n, 1 or 3, height, width) with `size` pixels a side.

    Args:
        source: grey images (n, H, W) or images (n, C, H, W).
        size: height and width; the source's own, or 16 where that's smaller, if not given.
    """
    images = source.x.unsqueeze(1) if source.x.ndim == 3 else source.x
    height, width = (size, size) if size else (max(side, SMALLEST) for side in images.shape[2:])
    return resize(images, height, width)


def dual_transform(images: Tensor, components: Tensor, client: int) -> Tensor:
    """Apply the component transforms, then the client's.

    Args:
        images: (n, 1 or 3, H, W) uint8.
        components: (n,) component of each image.
        client: which client it is.

    Returns:
        (n, 3, H, W) uint8.

    >>> dual_transform(torch.zeros(2, 1, 16, 16, dtype=torch.uint8), torch.tensor([0, 1]), client=0)[:, :, -1, -1]
    tensor([[  0,   0,   0],
            [255, 191, 128]], dtype=torch.uint8)
    """
    images = component_transform(images, components)
    return client_transform(images if images.shape[1] == 3 else grey_to_rgb(images), client)


def oracle_view(federation: Federation) -> tuple[Columns, Columns]:
    """Pool the clients' examples with their labels before permutation.

    A model that is trained on them and knows each example's client and component bounds what any method can reach. The
    images stay transformed, since clipping can't be undone.

    Args:
        federation: one whose truth is known, as of `dual_heterogeneity`.

    Returns:
        Training and test columns: "x" (n, *shape), "y" (n,) int64 labels before permutation, "client" (n,) and
        "component" (n,) int64. Clients follow one another in their order.

    Raises:
        ValueError: the truth isn't known.

    >>> from archipel.data.sources.scikit import digits
    >>> train, test = oracle_view(dual_heterogeneity(digits()))
    >>> len(train["y"]) + len(test["y"])
    1797
    """
    for client in federation.clients:
        if "label" not in client.truth.get("train", {}):
            raise ValueError(
                f"an oracle needs the true labels and components, which {federation.name!r} doesn't know for "
                f"client {client.name!r}; federations with them come from dual_heterogeneity."
            )

    def pooled(split: str) -> Columns:
        parts = [
            {
                "x": client.splits[split]["x"],
                "y": client.truth[split]["label"],
                "client": torch.full_like(client.truth[split]["label"], i),
                "component": client.truth[split]["component"],
            }
            for i, client in enumerate(federation.clients)
        ]
        return {column: torch.cat([part[column] for part in parts]) for column in parts[0]}

    return pooled("train"), pooled("test")


def stream(seed: int, purpose: Stream, client: int = 0) -> np.random.Generator:
    """Open the random stream of a purpose and a client.

    NumPy keeps the bits of PCG64 for good, but may change how distributions use them (NEP 19): to compare runs made
    with different versions, compare `Federation.fingerprint`.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(purpose, client))))


def draw_weights(seed: int, client: int, components: int, alpha: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Draw a client's (C,) mixing weights from Dirichlet(α)."""
    return stream(seed, Stream.WEIGHTS, client).dirichlet(np.full(components, alpha))


def draw_components(
    seed: int, client: int, count: int, weights: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> Tensor:
    """Draw (n,) int64 components, each example's by itself, by inverting the weights' distribution function."""
    uniform = stream(seed, Stream.COMPONENTS, client).random(count)
    # The last edge is left out: rounding may put it below 1, and a component C doesn't exist.
    return torch.from_numpy(np.searchsorted(np.cumsum(weights)[:-1], uniform, side="right").astype(np.int64))


def draw_permutations(seed: int, client: int, components: int, classes: int) -> Tensor:
    """Draw a client's (C, K) int64 permutations of the classes: row c sends label k to entry k."""
    generator = stream(seed, Stream.PERMUTATIONS, client)
    return torch.from_numpy(np.stack([generator.permutation(classes) for _ in range(components)]).astype(np.int64))


def _check(source: Source, clients: int, components: int, alpha_intra: float, size: int | None, seed: int) -> None:
    shape = tuple(source.x.shape)
    if source.x.dtype != torch.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[1] in (1, 3))):
        raise ValueError(
            f"source {source.name!r} holds {source.x.dtype} of shape {shape}; dual heterogeneity transforms uint8 "
            "images, (n, H, W) or (n, 3, H, W)."
        )
    if clients < 1:
        raise ValueError(f"clients is {clients}; a federation has 1 client or more.")
    if components < 1:
        raise ValueError(f"components is {components}; each client has 1 component or more, 2 in the paper.")
    if not (np.isfinite(alpha_intra) and alpha_intra > 0):
        raise ValueError(f"alpha_intra is {alpha_intra}; a Dirichlet concentration is a finite number above 0.")
    if size is not None and size < 1:
        raise ValueError(f"size is {size}; it is the height and width in pixels, such as 28 or 32.")
    if seed < 0:
        raise ValueError(f"seed is {seed}; it is a whole number, 0 or more.")
