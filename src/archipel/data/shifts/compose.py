"""Shifts by name, and their composition over the clients and components of a federation, on record.

>>> from archipel.data.divide import divide, latent_components
>>> from archipel.data.shifts.image_shifts import Inverted, Rotated
>>> from archipel.data.partitions.splits import iid
>>> from archipel.data.sources.scikit import digits
>>> source = digits()
>>> federation = divide(source, iid(source.y, clients=2, seed=0))
>>> federation = latent_components(federation, 2)
>>> shifted = compose(federation, components=[[[], [Inverted()]]] * 2, clients=[[], [Rotated(90)]])
>>> shifted.truth["shifts"][1]
[{'component': 1, 'shift': 'inverted', 'channels': 'all'}, {'shift': 'rotated', 'degrees': 90}]
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from archipel.core import keys
from archipel.data.client import Client, Columns
from archipel.data.federation import Federation
from archipel.data.partitions.by_name import check_named
from archipel.data.shifts.colours import Brightness, Contrast, Gamma, Hue, Saturation
from archipel.data.shifts.feature_shifts import Affine, Missing
from archipel.data.shifts.image_shifts import Blurred, Brightened, Cast, Coloured, Inverted, Rotated
from archipel.data.shifts.label_shifts import Keep, NoisyLabels, PermuteLabels
from archipel.data.shifts.shift import Shift, take

SHIFTS: dict[str, type[Shift]] = {
    "permute-labels": PermuteLabels,
    "noisy-labels": NoisyLabels,
    "affine": Affine,
    "missing": Missing,
    "keep": Keep,
    "coloured": Coloured,
    "inverted": Inverted,
    "cast": Cast,
    "brightened": Brightened,
    "rotated": Rotated,
    "blurred": Blurred,
    "brightness": Brightness,
    "contrast": Contrast,
    "gamma": Gamma,
    "saturation": Saturation,
    "hue": Hue,
}


Plan = list[tuple[int | None, Shift]]
Apply = Callable[[Columns, Columns], tuple[Columns, Columns]]
ROW = "row while a component is shifted"


def make_shift(name: str, **options: Any) -> Shift:
    """Make a shift by its name, as configurations give it and `compose` records it.

    Raises:
        ValueError: an unknown name or option, with the nearest.

    >>> make_shift("rotated", degrees=90)
    Rotated(degrees=90)
    >>> make_shift("rotate", degrees=90)
    Traceback (most recent call last):
    ValueError: there is no shift 'rotate'. Did you mean 'rotated'? There are: permute-labels, ...
    """
    check_named("shift", SHIFTS, name, options)
    return SHIFTS[name](**options)


def compose(
    federation: Federation,
    *,
    clients: Sequence[Sequence[Shift]] | None = None,
    components: Sequence[Sequence[Sequence[Shift]]] | None = None,
    splits: Sequence[str] = ("train", "validation", "test"),
    seed: int = 0,
) -> Federation:
    """Apply shifts, those of components first, then those of clients, each list in its order.

    ``[shifts] * m`` gives all clients the same shifts. Repeated calls add to what was applied before.

    Args:
        federation: what is shifted; it stays as it is.
        clients: per client its shifts.
        components: per client and component its shifts; the clients have components, as of `latent_components`.
        splits: which splits are shifted, as ("train",) for noise that tests don't have.
        seed: what determines random shifts; a client's don't depend on the other clients.

    Returns:
        A federation with inputs fitted anew. Its truth "shifts" lists what was done, per client, in order, so that
        `make_shift` can make it again; clients' truth has the columns that shifts add.

    Raises:
        ValueError: shifts that don't fit the data, or not one list for each client; before anything is done.
    """
    m = len(federation)
    for plan, known in ((components, "components"), (clients, "clients")):
        if plan is not None and len(plan) != m:
            raise ValueError(f"{known} has {len(plan)} entries for {m} clients; give one each, [] for none.")
    if unknown := [split for split in splits if split not in ("train", "validation", "test")]:
        raise ValueError(f"splits names {unknown[0]!r}; they are train, validation and test.")
    plans: list[Plan] = []
    for i, client in enumerate(federation.clients):
        inner = [(c, shift) for c, shifts in enumerate(components[i]) for shift in shifts] if components else []
        outer = [(None, shift) for shift in clients[i]] if clients else []
        for shift in (*(shift for _, shift in inner), *(shift for _, shift in outer)):
            shift.check(federation)
        if inner and any("component" not in client.truth.get(split, {}) for split in client.splits):
            raise ValueError(f"client {client.name!r} has no components. See latent_components.")
        plans.append([*inner, *outer])
    done: list[list[dict[str, Any]]] = federation.truth.get("shifts", [[] for _ in range(m)])
    made = [
        _shift_client(client, plan, splits, keys.fold(keys.key(seed), "shift", client.name), len(before))
        for client, plan, before in zip(federation.clients, plans, done, strict=True)
    ]
    first = made[0].train["x"]
    for client in made:
        if (x := client.train["x"]).shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise ValueError(
                f"client {client.name!r} ends with examples of shape {tuple(x.shape[1:])}, but {made[0].name!r} with "
                f"{tuple(first.shape[1:])}. Apply Coloured() to all clients or none."
            )
    everywhere = {} if set(splits) >= set(federation.clients[0].splits) else {"splits": list(splits)}
    record = [before + [_record(*step) | everywhere for step in plan] for before, plan in zip(done, plans, strict=True)]
    inputs = federation.inputs.refitted([client.train["x"] for client in made])
    return replace(federation, clients=tuple(made), inputs=inputs, truth=federation.truth | {"shifts": record})


def _record(component: int | None, shift: Shift) -> dict[str, Any]:
    names = {kind: name for name, kind in SHIFTS.items()}
    options: dict[str, Any] = asdict(shift)  # type: ignore[call-overload]
    where = {} if component is None else {"component": component}
    return where | {"shift": names.get(type(shift), type(shift).__name__)} | options


def _shift_client(client: Client, plan: Plan, splits: Sequence[str], key: Tensor, before: int) -> Client:
    columns = dict(client.splits)
    truth = {split: dict(client.truth.get(split, {})) for split in columns}
    for step, (component, shift) in enumerate(plan):
        step_key = keys.fold(key, before + step)
        # Training first: what is learnt from it, as means, the other splits use.
        for split in [name for name in ("train", "validation", "test") if name in columns and name in splits]:
            train = None if split == "train" else _part(columns["train"], truth["train"], component)
            apply: Apply = partial(shift.apply, key=keys.fold(step_key, split), train=train)
            changed = (columns[split], truth[split])
            columns[split], truth[split] = apply(*changed) if component is None else _within(*changed, component, apply)
    return replace(
        client,
        train=columns["train"],
        test=columns["test"],
        validation=columns.get("validation"),
        truth=client.truth | truth,
    )


def _part(columns: Columns, truth: Columns, component: int | None) -> Columns:
    return columns if component is None else take(columns, truth["component"] == component)


def _within(columns: Columns, truth: Columns, component: int, apply: Apply) -> tuple[Columns, Columns]:
    """Shift the rows of a component, and put all rows back in their order."""
    mine = truth["component"] == component
    truth = truth | {ROW: torch.arange(len(mine))}
    inner, known = apply(take(columns, mine), take(truth, mine))
    outer, rest = take(columns, ~mine), take(truth, ~mine)
    if inner["x"].shape[1:] != outer["x"].shape[1:]:
        raise ValueError(
            f"component {component} ends with examples of shape {tuple(inner['x'].shape[1:])}, unlike the others. "
            "Apply Coloured() to whole clients."
        )
    for name in known.keys() - rest.keys():  # of rows that were left alone: labels are as they are, and no mask is set
        marks = known[name].new_zeros(len(outer["y"]), *known[name].shape[1:])
        rest[name] = marks if marks.dtype == torch.bool else outer["y"]
    order = torch.cat([known[ROW], rest[ROW]]).argsort()
    merged = {name: torch.cat([inner[name], outer[name]])[order] for name in inner}
    return merged, {name: torch.cat([known[name], rest[name]])[order] for name in known if name != ROW}
