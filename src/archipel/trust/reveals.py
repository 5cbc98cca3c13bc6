"""What a method's clients send: found by running the method on a small substitute of the federation.

Nothing is written down by hand. The method meets its clients through a handle that records every reply, once with few
examples at each client and once with twice as many. A leaf whose shape follows the number of examples holds something
for every example.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Replies, Step, Weights
from archipel.core import keys
from archipel.core.groups import Groups, numbered
from archipel.core.trees import PerClient, Tree, flatten
from archipel.data.client import Client, Columns
from archipel.data.federation import Federation
from archipel.engines.handle import Handle, Ledger
from archipel.engines.loop import Loop
from archipel.engines.outcome import Outcome, step_name

EXAMPLES = 12
"""Training examples of each client of the substitute."""
Seen = Literal["each", "sum"]
When = Literal["start", "rounds"]


@dataclass(frozen=True)
class Revealed:
    """One leaf of the replies to one step.

    Args:
        step: the method of the algorithm that replies, as ``"FedAvg.train"``.
        leaf: the leaf's name, with slashes; empty if the reply is one tensor.
        numbers: how many numbers a client sends.
        seen: ``"each"``: the server sees each client's; ``"sum"``: it needs only their sum or mean.
        when: ``"start"``: once, before the first round; ``"rounds"``: in every round that asks for it.
        per_example: whether there is an entry for each of the client's training examples.
    """

    step: str
    leaf: str
    numbers: int
    seen: Seen
    when: When
    per_example: bool


def reveals(
    algorithm: Algorithm, federation: Federation, *, groups: Groups | None = None, clients: int | None = None
) -> tuple[Revealed, ...]:
    """List what clients send to the server, derived from the method's own messages.

    Two rounds are run on random examples of the federation's shapes and classes, at as many clients. What a method
    sends only later, or only of some data, isn't seen; no method here does that.

    Args:
        algorithm: the method, as it would be given to ``fit``.
        federation: whose shapes are used. Its examples are not looked at.
        groups: the edges of a hierarchy, for methods that need them.
        clients: how many clients the substitute has at most, without groups; default: as many as the federation.

    Returns:
        A row for each leaf of each step, in the order in which they are first sent.

    >>> from archipel import SGD, FedAvg, classification
    >>> x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    >>> islands = Federation.from_arrays([(x, torch.arange(30) % 2), (x, torch.arange(30) % 2)])
    >>> task = classification(torch.nn.Linear(4, 3), islands)
    >>> [found.leaf for found in reveals(FedAvg(task, SGD(lr=0.1, steps=1)), islands)][:2]
    ['model/encoder/weight', 'model/encoder/bias']
    >>> {found.per_example for found in reveals(FedAvg(task, SGD(lr=0.1, steps=1)), islands)}
    {False}
    """
    if clients is not None and groups is None:
        federation = replace(federation, clients=federation.clients[:clients], truth={})
    once, twice = (_recorded(algorithm, federation, groups, EXAMPLES * times) for times in (1, 2))
    found = []
    for (step, leaf, seen, when), shape in once.items():
        larger = twice.get((step, leaf, seen, when), shape)
        found.append(Revealed(step, leaf, shape.numel(), seen, when, shape != larger))
    return tuple(found)


@dataclass
class _Log:
    shapes: dict[tuple[str, str, Seen, When], torch.Size] = field(default_factory=dict)
    seen: Seen = "each"
    when: When = "start"


@dataclass(frozen=True)
class _Recording(Handle):
    """A handle that notes the form of every reply, and whether the server needs single ones."""

    log: _Log = field(default_factory=_Log)

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        with self._summing():
            return super().sum(step, message, key, weights)

    def mean(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        with self._summing():
            return super().mean(step, message, key, weights)

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        with self._summing():
            return super().mean_and_share(step, message, key, weights)

    def evaluate(self, step: Step, message: Tree, key: Tensor) -> Replies:
        replies = super().evaluate(step, message, key)
        self._note(step, replies.value)
        return replies

    @contextmanager
    def _summing(self) -> Iterator[None]:
        self.log.seen = "sum"
        try:
            yield
        finally:
            self.log.seen = "each"

    def _run(self, step: Step, message: Tree, key: Tensor, apart: bool = False) -> Iterator[Outcome]:
        for outcome in super()._run(step, message, key, apart):
            self._note(step, outcome.replies)
            yield outcome

    def _note(self, step: Step, replies: Tree) -> None:
        for leaf, values in flatten(replies).items():
            if values.numel():
                place = step_name(step), leaf, self.log.seen, self.log.when
                self.log.shapes.setdefault(place, values.shape[1:])


def _recorded(
    algorithm: Algorithm, federation: Federation, groups: Groups | None, examples: int
) -> dict[tuple[str, str, Seen, When], torch.Size]:
    """Run the start and two rounds of a method on a substitute, and return the form of all replies."""
    substitute, log, root = _substitute(federation, examples), _Log(), keys.key(0)
    edges = () if groups is None else tuple(numbered(groups, [client.name for client in federation.clients]))
    everyone = torch.arange(len(substitute))
    with closing(Loop(algorithm, substitute)) as carrier, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the method says of its data is not about the user's
        clients = _Recording(carrier, everyone, substitute.sizes, 0, 2, Ledger(), edges=edges, log=log)
        server = algorithm.init_server(clients, keys.fold(root, "server"))
        clients.apply(algorithm.enrol, {"server": server, "index": PerClient(everyone)}, keys.fold(root, "enrol"))
        log.when = "rounds"
        for round in range(2):
            handle = replace(clients, round=round, ledger=Ledger())
            server, _ = algorithm.round(server, handle, keys.fold(root, "round", round))
    return log.shapes


def _substitute(federation: Federation, examples: int) -> Federation:
    """Return a federation of the same shapes, types and number of clients, with other examples."""
    generator = torch.Generator().manual_seed(examples)

    def other(columns: Columns) -> Columns:
        return {name: _random(values, examples, federation, name, generator) for name, values in columns.items()}

    def stand_in(client: Client) -> Client:
        nothing = {name: values[:0] for name, values in client.test.items()}
        return Client(client.name, other(client.train), nothing)

    return replace(federation, clients=tuple(map(stand_in, federation.clients)), truth={})


def _random(values: Tensor, n: int, federation: Federation, name: str, generator: torch.Generator) -> Tensor:
    shape = (n, *values.shape[1:])
    if name == "y" and federation.classes is not None:
        return torch.arange(n) % len(federation.classes)
    if values.dtype.is_floating_point:
        return torch.rand(shape, generator=generator, dtype=torch.float32).to(values.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(values.dtype)


def told(algorithm: Algorithm, federation: Federation, groups: Groups | None = None) -> list[str]:
    """Say what clients send, for a log or a report: the lines of :func:`lines`, or one that says why there are none.

    At most 8 clients stand in for all, so that entries with a number for each client are shown shorter than they are.
    """
    try:
        return lines(reveals(algorithm, federation, groups=groups, clients=8))
    except Exception as error:  # a method of the user's own, which may need other examples
        why = str(error).strip().splitlines()
        return [
            f"not known: the method doesn't run on the substitute ({why[0][:120] if why else type(error).__name__})"
        ]


def lines(found: Sequence[Revealed]) -> list[str]:
    """Say what clients send, a line for each step, with the entries of its reply.

    >>> row = Revealed("FedAvg.train", "model/weight", 6, "sum", "rounds", False)
    >>> lines([row, replace(row, leaf="model/bias", numbers=2), replace(row, leaf="loss", numbers=1)])
    ['train, in each round: model (8 numbers), loss (1 number); the server needs only sums over clients']
    """
    steps: dict[tuple[str, When, Seen, bool], dict[str, int]] = {}
    for row in found:
        entries = steps.setdefault((row.step.split(".")[-1], row.when, row.seen, row.per_example), {})
        entry = row.leaf.split("/")[0] or "the reply"
        entries[entry] = entries.get(entry, 0) + row.numbers
    said = []
    for (step, when, seen, per_example), entries in steps.items():
        numbers = [f"{name} ({count:,} number{'s' * (count != 1)})" for name, count in entries.items()]
        if per_example:
            numbers = [f"{name} (an entry for EVERY EXAMPLE)" for name in entries]
        how = "the server needs only sums over clients" if seen == "sum" else "the server sees each client's"
        said.append(f"{step}, {'in each round' if when == 'rounds' else 'once'}: {', '.join(numbers)}; {how}")
    return said
