"""Bundles: trained runs as files that ``archipel_serve`` answers queries from, without torch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from archipel.algorithm import (
    Embeds,
    HasRoutingPrior,
    Predicts,
    PredictsGlobally,
    Routes,
    RoutesEmbedded,
)
from archipel.core import keys
from archipel.core.trees import Tree, flatten, leaves, unflatten, with_leaves
from archipel.data.federation import Federation
from archipel.runs.answers import answering, one_piece
from archipel.runs.run import Run
from archipel.serving.card import write_card
from archipel.serving.graphs import EXAMPLES, Function, Graph, NotExportableError, trace
from archipel_serve.manifest import Manifest, write_manifest
from archipel_serve.models import Models
from archipel_serve.preparation import Preparation

TOLERANCE = 1e-5
"""Answers of a bundle differ from the run's by at most this, absolutely and relatively to values."""
BATCHES = (1, 2, 5)


def export_bundle(
    run: Run,
    folder: str | Path,
    *,
    site: str | int | None = None,
    sign: str | Path | None = None,
    federation: Federation | None = None,
) -> Path:
    """Write a run's router and answer models as a bundle, and check that it answers as the run does.

    Args:
        run: what was trained.
        folder: to be made; it must not exist.
        site: a client; its bundle holds its own answer model and the router, and no other client's answer model.
            ``None``: all clients.
        sign: a file with an Ed25519 private key (PEM) that signs the manifest.
        federation: the run's, for the data's card in the model card; ``None``: the card says nothing of the data.

    Returns:
        The folder.

    Raises:
        FileExistsError: the folder exists.
        TypeError: the method fits a distribution, and has no model that answers.
        NotExportableError: a model has operations that ONNX doesn't have, or answers otherwise than in torch; the
            message names it.

    >>> from archipel.algorithms.local_only import Local
    >>> from archipel.fit import fit
    >>> from archipel.learning.sgd import SGD
    >>> from archipel.learning.tasks import classification
    >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    >>> islands = Federation.from_arrays([(part, (part[:, 0] > 0).long()) for part in x.split(20)])
    >>> run = fit(Local(classification(torch.nn.Linear(3, 4), islands), SGD(steps=1)), islands, rounds=1)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     sorted(path.name for path in export_bundle(run, Path(place) / "bundle").iterdir())
    ['answers', 'card.html', 'card.json', 'manifest.json']
    """
    algorithm, place = run.algorithm, Path(folder)
    if not isinstance(algorithm, Predicts | PredictsGlobally):
        raise TypeError(
            f"{type(algorithm).__name__} has no model that answers queries: it fits a distribution. Export a run of a "
            "method that predicts; `archipel list` names them."
        )
    if place.exists():
        raise FileExistsError(f"{place} exists. Choose another folder for the bundle, or remove it.")
    chosen = None if site is None else _number(run, site)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as made:
        new = Path(made) / "bundle"
        (new / "answers").mkdir(parents=True)
        manifest = _Writer(run, new).write(chosen)
        write_card(run, manifest, new, federation)
        write_manifest(new, manifest, None if sign is None else Path(sign))
        _check(run, new)
        shutil.move(new, place)
    return place


class _Writer:
    """Traces each function of a run once, and writes it with the server's and each client's tensors in it."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.server = flatten(run.server)
        self.graphs: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def write(self, chosen: int | None) -> Manifest:
        """Write all graphs, and return what the manifest says but for the files' hashes."""
        algorithm, facts, x = self.run.algorithm, self.run.facts, synthetic(self.run, EXAMPLES)
        embedded: Tree = x
        with torch.no_grad():
            if isinstance(algorithm, Embeds):
                embedded = algorithm.embed(self.run.server, x)
        shares = embedded is not x
        queries: list[Tensor] = leaves(embedded)
        names = tuple(f"features_{i}" for i in range(len(queries))) if shares else ("x",)
        routes_features = isinstance(algorithm, RoutesEmbedded) and shares
        if shares and isinstance(algorithm, Embeds):
            embeds = algorithm.embed
            self._save("embed", lambda server, q: leaves(embeds(server, q[0])), [x], ("x",), names)
        if isinstance(algorithm, RoutesEmbedded) and shares:
            embedded_route = algorithm.route_embedded
            self._save(
                "router",
                lambda server, q: [embedded_route(server, with_leaves(embedded, q))],
                queries,
                names,
                ("log_posterior",),
            )
        elif isinstance(algorithm, Routes):
            route = algorithm.route
            self._save("router", lambda server, q: [route(server, q[0])], [x], ("x",), ("log_posterior",))
        if isinstance(algorithm, PredictsGlobally):
            ask = algorithm.predict_global
            self._save("global", lambda server, q: [ask(server, q[0])], [x], ("x",), ("answer",))
        if isinstance(algorithm, Predicts):
            self._answers(range(len(facts.names)) if chosen is None else [chosen], embedded, names)
        prior = torch.tensor(facts.sizes).double()
        if isinstance(algorithm, HasRoutingPrior):
            prior = algorithm.routing_prior(self.run.server).double()
        return Manifest(
            method=type(algorithm).__name__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={name: version(name) for name in ("archipel", "torch", "numpy", "onnx")},
            preparation=Preparation(**{name: getattr(facts.inputs, name) for name in Preparation.__dataclass_fields__}),
            classes=facts.classes,
            outputs=facts.outputs,
            names=facts.names,
            sizes=facts.sizes,
            prior=tuple((prior / prior.sum()).tolist()),
            site=None if chosen is None else facts.names[chosen],
            features=dict(zip(names, map(_form, queries), strict=True)) if shares else {},
            graphs=self.graphs,
            routes_features=routes_features,
            missing=self.missing,
            files={},
        )

    def _answers(self, clients: Sequence[int], embedded: Tree, names: tuple[str, ...]) -> None:
        """Write the clients' answer models: one graph, filled with each client's own tensors."""
        graph: Graph | None = None
        shapes: dict[str, Any] = {}
        for i in clients:
            name = self.run.facts.names[i]
            if i in self.run.unadapted:
                self.missing[name] = "it hasn't adapted, because the run ended before or its adaptation failed"
                continue
            client = flatten(answering(self.run.algorithm, self.run.clients[i]))
            if graph is None or shapes != {path: (t.shape, t.dtype) for path, t in client.items()}:
                shapes = {path: (t.shape, t.dtype) for path, t in client.items()}

                def ask(q: list[Tensor], tensors: list[Tensor], paths: tuple[str, ...] = tuple(client)) -> list[Tensor]:
                    server = dict(zip(self.server, tensors, strict=False))
                    own = dict(zip(paths, tensors[len(server) :], strict=True))
                    return [one_piece(self.run.algorithm, unflatten(server), unflatten(own), with_leaves(embedded, q))]

                tensors = [*self.server.values(), *client.values()]
                graph = self._trace(f"the answer model of {name}", ask, leaves(embedded), tensors, names, ("answer",))
            self._write(f"answer/{i}", f"answers/{i:04}", graph, {"server": self.server, "client": client})

    def _save(
        self,
        graph: str,
        function: Callable[[Tree, list[Tensor]], Sequence[Tensor]],
        queries: list[Tensor],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> None:
        """Write a graph of the server's state alone."""

        def ask(q: list[Tensor], tensors: list[Tensor]) -> Sequence[Tensor]:
            return function(unflatten(dict(zip(self.server, tensors, strict=True))), q)

        traced = self._trace(f"its {graph} graph", ask, queries, list(self.server.values()), inputs, outputs)
        self._write(graph, graph, traced, {"server": self.server})

    def _trace(self, what: str, function: Function, *given: Any) -> Graph:
        try:
            return trace(function, *given)
        except NotExportableError as error:
            method = type(self.run.algorithm).__name__
            raise NotExportableError(
                f"{method} can't be exported: {what} has operations that ONNX doesn't have. The exporter says: {error}"
            ) from error

    def _write(self, graph: str, stem: str, traced: Graph, states: dict[str, dict[str, Tensor]]) -> None:
        tensors = {f"{owner}/{path}": tensor for owner, state in states.items() for path, tensor in state.items()}
        values = list(tensors.values())
        (self.folder / f"{stem}.onnx").write_bytes(traced.filled(values))
        paths = list(tensors)
        used = {paths[i]: values[i].detach().clone().contiguous() for i in traced.open.values()}
        safetensors.torch.save_file(used, self.folder / f"{stem}.safetensors")
        self.graphs[graph] = f"{stem}.onnx"


def _form(feature: Tensor) -> dict[str, Any]:
    return {"dtype": feature.numpy().dtype.name, "shape": list(feature.shape[1:])}


def synthetic(run: Run, n: int) -> Tensor:
    """Return ``(n, *shape)`` raw queries with the mean and deviation of the training data, and none of its rows."""
    inputs = run.facts.inputs
    drawn = keys.normal(keys.key(n), n, *inputs.shape).double()
    axes = (-1, 1, 1) if inputs.kind == "image" else (-1,)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(axes) for values in (inputs.mean, inputs.std))
    raw = (mean + std * drawn) * inputs.scale
    return raw.round().clamp(0, 255).to(torch.uint8) if inputs.dtype == torch.uint8 else raw.to(inputs.dtype)


def _check(run: Run, folder: Path) -> None:
    """Refuse a bundle that answers otherwise than the run, in batches of several sizes."""
    models = Models(folder)
    manifest = models.manifest
    for n in BATCHES:
        x = synthetic(run, n)
        if models.routes:
            found = np.exp(models.log_posterior(x.numpy(), models.embed(x.numpy())))
            _compare(run, "its router", found, run.route(x).probabilities)
        for i, name in enumerate(manifest.names):
            if models.has(i):
                values = models.predict(x.numpy(), i).values
                _compare(run, f"the answer model of {name}", values, run.predict(x, i).values)
        if "global" in manifest.graphs:
            whole = isinstance(run.algorithm, Routes)
            expected = None if whole else run.predict(x).values
            if expected is not None and manifest.site is None:
                _compare(run, "its global model", models.predict(x.numpy()).values, expected)


def _compare(run: Run, what: str, found: np.ndarray[Any, Any], expected: Tensor) -> None:
    if not np.allclose(found, expected.numpy(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        gap = float(np.abs(found - expected.numpy()).max())
        raise NotExportableError(
            f"{type(run.algorithm).__name__} can't be exported: {what} answers otherwise by ONNX than by torch; they "
            f"differ by {gap:.2g}, and at most {TOLERANCE:g} is allowed."
        )


def _number(run: Run, site: str | int) -> int:
    names = run.facts.names
    if site in names:
        return names.index(str(site))
    if str(site).isdecimal() and int(site) < len(names):
        return int(site)
    raise ValueError(f"There is no client {site!r}; there are {', '.join(names[:20])}, or 0 to {len(names) - 1}.")
