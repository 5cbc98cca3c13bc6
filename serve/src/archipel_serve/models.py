"""The models of a bundle: routes and answers by onnxruntime, equal to those of ``archipel.Run`` up to rounding."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from archipel_serve.manifest import BundleError, read_manifest

Values = NDArray[Any]
Prior = Literal["uniform"] | Sequence[float]
PIECE = 512
"""Examples in a forward pass."""


@dataclass(frozen=True)
class Answers:
    """Answers to queries.

    Args:
        values: ``(n, K)`` class probabilities, or ``(n, outputs)`` values of a regression.
        labels: the name of each query's most likely class; ``None`` for a regression.
        answered_by: a site's name, ``"global model"`` or ``"vote"``, for each query.
    """

    values: Values
    labels: list[str] | None
    answered_by: list[str]


class Models:
    """A bundle that answers queries.

    Args:
        folder: of the bundle.
        trust: a file with the public key that must have signed it, see :func:`read_manifest`.
        threads: of one forward pass.

    Raises:
        BundleError: the bundle is damaged, or not trusted.
    """

    def __init__(self, folder: Path, trust: Path | None = None, threads: int = 1) -> None:
        self.folder, self.manifest, self._threads = folder, read_manifest(folder, trust), threads
        self._sessions: dict[str, Any] = {}
        self._lock = Lock()
        for graph in ("embed", "router", "global"):
            if graph in self.manifest.graphs:
                self._session(graph)

    @property
    def routes(self) -> bool:
        """Whether the bundle has a router."""
        return "router" in self.manifest.graphs

    def has(self, site: int) -> bool:
        """Whether the bundle has this site's answer model."""
        return f"answer/{site}" in self.manifest.graphs

    def index(self, site: str | int) -> int:
        """Return a site's number.

        Raises:
            ValueError: there is no such site.
        """
        names = self.manifest.names
        if isinstance(site, str) and site in names:
            return names.index(site)
        if isinstance(site, str) and site.isdecimal() and len(site) < 10:
            site = int(site)
        if isinstance(site, int) and not isinstance(site, bool) and 0 <= site < len(names):
            return site
        raise ValueError(f"there is no site {site!r:.80}; there are {', '.join(names[:20])}, or 0 to {len(names) - 1}.")

    def embed(self, x: Values) -> list[Values]:
        """Return what all models share of prepared queries: features, or x itself where they share nothing."""
        return self._run("embed", [x]) if self.manifest.features else [x]

    def log_posterior(self, x: Values | None, features: list[Values], prior: Prior | None = None) -> Values:
        """Return ``(n, m)`` log-posteriors over sites.

        Args:
            x: ``(n, …)`` prepared queries; ``None`` where only features are known.
            features: of :meth:`embed`.
            prior: π, shares of the sites among the queries, or ``"uniform"``; ``None``: the router's own, ρ. The
                posterior is reweighted by π_i/ρ_i.

        Raises:
            ValueError: no router, no queries for one that needs them, or a prior that isn't a share for each site.
        """
        if not self.routes:
            raise ValueError(f"{self.manifest.method} doesn't route queries. Name the site that answers.")
        if not self.manifest.routes_features and x is None:
            raise ValueError(f"the router of {self.manifest.method} takes queries, not features. Give the query.")
        queries = features if self.manifest.routes_features else [x]
        found: Values = self._run("router", queries)[0]  # type: ignore[arg-type]
        return self.reweighted(found, prior)

    def reweighted(self, log_posterior: Values, prior: Prior | None) -> Values:
        """Return log-posteriors under another prior: log p_i + log π_i − log ρ_i, normalised.

        Raises:
            ValueError: a prior that isn't a share for each site.
        """
        weight = self._weight(prior)
        if weight is None:
            return log_posterior
        return log_softmax(log_posterior.astype(np.float64) + weight).astype(log_posterior.dtype)

    def answer(self, site: int, features: list[Values]) -> Values:
        """Return ``(n, K)`` log-probabilities or values of a site's model.

        Raises:
            ValueError: the bundle doesn't have the model, with the reason.
        """
        name = self.manifest.names[site]
        if not self.has(site):
            why = self.manifest.missing.get(name, f"this is the bundle of {self.manifest.site}")
            raise ValueError(f"the bundle has no answer model of {name}: {why}.")
        return self._run(f"answer/{site}", features)[0]

    def predict(self, x: Values, site: str | int | None = None, prior: Prior | None = None) -> Answers:
        """Answer prepared queries as ``archipel.Run.predict`` does.

        Args:
            x: ``(n, …)`` prepared queries.
            site: who answers. ``None``: the site that each query is routed to; the site whose bundle this is; the
                global model if there is no router; a vote of all sites if there is neither.
            prior: see :meth:`log_posterior`.
        """
        features = self.embed(x)
        names, n = self.manifest.names, len(x)
        if site is None and self.manifest.site is not None:
            site = self.manifest.site
        if site is not None:
            index = self.index(site)
            return self.answered(self.answer(index, features), [names[index]] * n)
        if self.routes:
            return self.by_site(self.log_posterior(x, features, prior).argmax(-1), features)
        return self.without_router(x, features)

    def without_router(self, x: Values, features: list[Values]) -> Answers:
        """Answer by the global model; by a vote of all sites if there is none."""
        n = len(x)
        if "global" in self.manifest.graphs:
            return self.answered(self._run("global", [x])[0], ["global model"] * n)
        return self._vote(features, n)

    def by_site(self, sites: NDArray[np.int64], features: list[Values]) -> Answers:
        """Answer each query by the model of its site."""
        values: Values | None = None
        for index in np.unique(sites).tolist() or [0]:
            mine = sites == index
            found = self.answer(index, [part[mine] for part in features])
            values = np.zeros((len(sites), found.shape[1]), found.dtype) if values is None else values
            values[mine] = found
        assert values is not None
        return self.answered(values, [self.manifest.names[i] for i in sites.tolist()])

    def answered(self, values: Values, by: list[str]) -> Answers:
        """Return answers from log-probabilities or values."""
        if self.manifest.classes is None:
            return Answers(values, None, by)
        return Answers(np.exp(values), [self.manifest.classes[k] for k in values.argmax(-1).tolist()], by)

    def _vote(self, features: list[Values], n: int) -> Answers:
        if self.manifest.missing:
            name, why = next(iter(self.manifest.missing.items()))
            raise ValueError(f"the bundle has no answer model of {name}: {why}. Name the site that answers.")
        m, K, classes = len(self.manifest.names), self.manifest.outputs, self.manifest.classes
        sums, votes = np.zeros((n, K)), np.zeros((n, K))
        for index in range(m):
            found = self.answer(index, features)
            dtype = found.dtype
            sums += found if classes is None else np.exp(found)
            if classes is not None:
                votes[np.arange(n), found.argmax(-1)] += 1
        mean = (sums / m).astype(dtype)
        if classes is None:
            return Answers(mean, None, ["vote"] * n)
        # Summed probabilities are at most m, so divided by m + 1 they break ties and do nothing else.
        winners = (votes + sums / (m + 1)).argmax(-1)
        return Answers(mean, [classes[k] for k in winners.tolist()], ["vote"] * n)

    def _weight(self, prior: Prior | None) -> Values | None:
        if prior is None:
            return None
        m = len(self.manifest.names)
        asked = np.ones(m) if isinstance(prior, str) and prior == "uniform" else None
        if asked is None and not isinstance(prior, str):
            try:
                asked = np.asarray(prior, np.float64)
            except (ValueError, TypeError):
                asked = None
        if asked is None or asked.shape != (m,) or not np.isfinite(asked).all() or (asked < 0).any() or not asked.any():
            raise ValueError(
                f"prior must be 'uniform', or a share of 0 or above for each of the {m} sites, not all of them 0; "
                f"given {prior!r:.200}."
            )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(asked) - np.log(np.asarray(self.manifest.prior)))

    def _run(self, graph: str, queries: list[Values]) -> list[Values]:
        session, names = self._session(graph)
        n = len(queries[0])
        if n <= PIECE:
            return self._piece(session, names, queries) if n else self._none(session, names, queries)
        parts = [
            self._piece(session, names, [q[start : start + PIECE] for q in queries]) for start in range(0, n, PIECE)
        ]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    @staticmethod
    def _piece(session: Any, names: list[str], queries: list[Values]) -> list[Values]:
        # A graph names the inputs that it uses; a model may not look at all that is embedded.
        return list(session.run(None, {name: q for name, q in zip(names, queries, strict=True) if name}))

    def _none(self, session: Any, names: list[str], queries: list[Values]) -> list[Values]:
        one = [np.zeros((1, *q.shape[1:]), q.dtype) for q in queries]
        return [part[:0] for part in self._piece(session, names, one)]

    def _session(self, graph: str) -> tuple[Any, list[str]]:
        with self._lock:
            if graph not in self._sessions:
                self._sessions[graph] = self._open(graph)
            found: tuple[Any, list[str]] = self._sessions[graph]
            return found

    def _open(self, graph: str) -> tuple[Any, list[str]]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 4  # onnxruntime reports what it repairs; what it can't repair raises an error
        try:
            session = ort.InferenceSession(
                self.folder / self.manifest.graphs[graph], options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise BundleError(f"{self.folder}: {self.manifest.graphs[graph]} can't be loaded: {error}") from error
        features = self.manifest.features
        takes_x = (
            not features or graph in ("embed", "global") or (graph == "router" and not self.manifest.routes_features)
        )
        used = {node.name for node in session.get_inputs()}
        return session, [name if name in used else "" for name in (("x",) if takes_x else features)]


def log_softmax(values: Values) -> Values:
    """Return log(exp(v_i)/Σ_j exp(v_j)) over the last axis.

    >>> log_softmax(np.log([[1.0, 3.0]])).round(4).tolist()
    [[-1.3863, -0.2877]]
    """
    shifted = values - values.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
