"""Partitions by name, as configurations give them."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import ArrayLike

from archipel.data.partitions.label_mixtures import dirichlet_by_client, pachinko
from archipel.data.partitions.skews import by_owner, pathological, quantity, shards
from archipel.data.partitions.splits import Indices, Seed, dirichlet_by_class, iid

PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "iid": iid,
    "dirichlet": dirichlet_by_class,
    "dirichlet-by-client": dirichlet_by_client,
    "pathological": pathological,
    "shards": shards,
    "quantity": quantity,
    "natural": by_owner,
    "pachinko": pachinko,
}
GIVEN = {
    "labels": "the class of each example",
    "owners": "the owner of each example",
    "coarse": "the superclass of each example",
    "clients": "the number of clients",
    "seed": "a seed",
}
"""Parameters that the data and the run determine; they are no options."""


def make_partition(
    name: str,
    labels: ArrayLike,
    clients: int | None = None,
    seed: Seed = 0,
    *,
    coarse: ArrayLike | None = None,
    **options: Any,
) -> list[Indices]:
    """Divide examples over clients by a partition's name.

    Args:
        name: one of `PARTITIONS`.
        labels: (n,) class of each example; for "natural", its owner.
        clients: number of clients; "natural" finds it in the data.
        seed: what determines the draw.
        coarse: (n,) superclass of each example, for "pachinko".
        options: what else the partition takes, as alpha=0.5 for "dirichlet".

    Returns:
        Sorted index arrays, one for each client.

    Raises:
        ValueError: an unknown name or option, with the nearest; a missing option; what the partition refuses.

    >>> [len(part) for part in make_partition("quantity", range(11), clients=3, exponent=1.0)]
    [6, 3, 2]
    >>> make_partition("dirichlet", range(11), clients=3, alhpa=1.0)
    Traceback (most recent call last):
    ValueError: partition dirichlet has no option 'alhpa'. Did you mean 'alpha'? It takes: alpha, minimum.
    """
    check_partition(name, options)
    known = {"labels": labels, "owners": labels, "coarse": coarse, "clients": clients, "seed": seed}
    needed = {key: known[key] for key in inspect.signature(PARTITIONS[name]).parameters if key in known}
    for key, value in needed.items():
        if value is None:
            raise ValueError(f"partition {name} needs {GIVEN[key]}: {key}=….")
    return PARTITIONS[name](**needed, **options)


def check_partition(name: str, options: Iterable[str]) -> None:
    """Refuse a partition that doesn't exist, options that it doesn't take, and options that it lacks.

    Raises:
        ValueError: with the nearest name.
    """
    check_named("partition", PARTITIONS, name, options, given=GIVEN)


def check_named(
    what: str, known: Mapping[str, Callable[..., Any]], name: str, options: Iterable[str], given: Iterable[str] = ()
) -> None:
    """Refuse a name that isn't in a registry, and options that don't fit what it names.

    Args:
        what: is named, for error messages.
        known: the registry.
        name: looked up in it.
        options: the options' names.
        given: parameters that are no options.

    Raises:
        ValueError: with the nearest name.
    """
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}.{nearest(name, known)} There are: {', '.join(known)}.")
    parameters = inspect.signature(known[name]).parameters
    allowed = {key: parameter for key, parameter in parameters.items() if key not in set(given)}
    takes = f"It takes: {', '.join(allowed)}." if allowed else "It takes none."
    options = list(options)
    for key in options:
        if key not in allowed:
            raise ValueError(f"{what} {name} has no option {key!r}.{nearest(key, allowed)} {takes}")
    missing = [key for key, p in allowed.items() if p.default is inspect.Parameter.empty and key not in options]
    if missing:
        raise ValueError(f"{what} {name} needs the option {missing[0]!r}. {takes}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Ask whether the nearest name was meant, or say nothing.

    >>> nearest("dirichle", PARTITIONS)
    " Did you mean 'dirichlet'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
