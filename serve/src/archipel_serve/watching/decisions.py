"""A log of decisions that is only added to, and decisions made again from it."""

import base64
import hashlib
import hmac
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archipel_serve.manifest import MANIFEST, digest
from archipel_serve.models import Models, Prior

SHORTEST_KEY = 16


class DecisionLog:
    """Adds a line of JSON for each decision to a file.

    A line has the time, a keyed hash of the prepared query (HMAC-SHA256), the router's log-posterior, the prior that
    was asked for, the site, and the hash of the bundle's manifest. Whoever lacks the key can't tell from the hash
    whether a guessed query was asked.

    Args:
        file: made if it isn't there; only its owner may read it.
        key: a file with a secret of at least 16 bytes.
        models: of the bundle.
        store: whether to keep the prepared queries as well, which ``replay`` with another bundle needs.

    Raises:
        ValueError: a key that is too short.
    """

    def __init__(self, file: Path, key: Path, models: Models, store: bool = False) -> None:
        self._key = key.read_bytes().strip()
        if len(self._key) < SHORTEST_KEY:
            raise ValueError(f"{key} holds {len(self._key)} bytes; the key of the log needs {SHORTEST_KEY} or more.")
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._models, self._store, self._lock = models, store, threading.Lock()
        self._bundle = digest(models.folder / MANIFEST)

    def add(
        self, queries: list[NDArray[Any]], log_posterior: NDArray[Any], prior: Prior | None, sites: list[str]
    ) -> None:
        """Add decisions.

        Args:
            queries: the prepared queries, or their features: arrays ``(n, …)``.
            log_posterior: ``(n, m)`` under the router's own prior.
            prior: that was asked for.
            sites: the decision for each query.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = []
        for i, (row, site) in enumerate(zip(log_posterior.tolist(), sites, strict=True)):
            content = b"".join(np.ascontiguousarray(part[i]).tobytes() for part in queries)
            line: dict[str, Any] = {"time": now, "query": hmac.new(self._key, content, hashlib.sha256).hexdigest()}
            line |= {"bundle": self._bundle, "log_posterior": row, "prior": prior, "site": site}
            if self._store:
                line["stored"] = base64.b64encode(content).decode()
            lines.append(json.dumps(line))
        with self._lock:
            os.write(self._file, ("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(frozen=True)
class Change:
    """A decision that would be another one.

    Args:
        time: of the decision.
        query: its keyed hash.
        before: the site then.
        after: the site now.
    """

    time: str
    query: str
    before: str
    after: str


def replay(log: Path, models: Models, prior: Prior | None = None, again: bool = False) -> Iterator[Change | None]:
    """Decide again, and yield for each decision how it changes; ``None``: it stays.

    Args:
        log: of :class:`DecisionLog`.
        models: of the bundle that decided; of another one with ``again``.
        prior: of the sites among the queries.
        again: ask the router again by the stored queries, in place of the logged log-posteriors.

    Raises:
        ValueError: a line that can't be read, decisions of another bundle, or queries that weren't stored.
    """
    bundle = digest(models.folder / MANIFEST)
    manifest = models.manifest
    with log.open() as lines:
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
                row = np.asarray([line["log_posterior"]], np.float64)
                before, time, query, known = line["site"], line["time"], line["query"], line["bundle"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{log}, line {number} can't be read ({type(error).__name__}).") from error
            if again:
                if "stored" not in line:
                    raise ValueError(
                        f"{log}, line {number} has no stored query, and another bundle needs it. Serve with "
                        "--store-queries to keep queries from now on."
                    )
                flat = np.frombuffer(base64.b64decode(line["stored"]), manifest.preparation.storage)
                if flat.size != np.prod(manifest.preparation.shape):
                    raise ValueError(f"{log}, line {number}: the query doesn't fit this bundle.")
                x = flat.reshape(1, *manifest.preparation.shape)
                row = models.log_posterior(x, models.embed(x)).astype(np.float64)
            elif known != bundle:
                raise ValueError(
                    f"{log}, line {number} was decided by another bundle. Give that one; this one needs stored queries."
                )
            after = manifest.names[int(models.reweighted(row, prior).argmax())]
            yield None if after == before else Change(time, query, before, after)
