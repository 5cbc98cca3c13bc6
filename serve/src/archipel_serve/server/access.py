"""Who may ask, and how often: API keys and limits of the rate."""

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from archipel_serve.server.queries import RefusedError

MOST_CALLERS = 10_000
"""Callers whose rate is remembered."""


def read_keys(file: Path) -> dict[str, str]:
    """Read API keys: a line for each, its owner's name and the key's SHA-256 in hexadecimal.

    Raises:
        ValueError: a line of another form, or no keys.
    """
    found = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        parts = line.split()
        if not parts or line.startswith("#"):
            continue
        if len(parts) != 2 or len(parts[1]) != 64 or set(parts[1].lower()) - set("0123456789abcdef"):
            raise ValueError(
                f"{file}, line {number}: give a name and the SHA-256 of the key, as `archipel-serve-key NAME` prints."
            )
        found[parts[1].lower()] = parts[0]
    if not found:
        raise ValueError(f"{file} holds no keys. `archipel-serve-key NAME` makes one.")
    return found


def owner(keys: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """Return whose key a request bears, as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``.

    Raises:
        RefusedError: no key, or a wrong one.
    """
    given = headers.get("x-api-key", "")
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if not given and scheme.lower() == "bearer":
        given = token.strip()
    if not given:
        asks = {"WWW-Authenticate": "Bearer"}
        raise RefusedError(401, "This server needs an API key: send the header Authorization: Bearer KEY.", asks)
    digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest()
    for known, name in keys.items():
        if hmac.compare_digest(known, digest):
            return name
    raise RefusedError(401, "The API key isn't known here. Ask the operator for one.", {"WWW-Authenticate": "Bearer"})


@dataclass
class RateLimit:
    """Token buckets: each caller may ask `rate` times a second on average, and twice that at once.

    Args:
        rate: requests a second; ``None``: without a limit.
        clock: seconds.

    >>> limit = RateLimit(1.0, clock=lambda: 0.0)
    >>> [limit.allows("a") for _ in range(3)], limit.allows("b")
    ([True, True, False], True)
    """

    rate: float | None
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict, init=False)

    def allows(self, caller: str) -> bool:
        """Whether the caller may ask now; it counts as asked."""
        if self.rate is None:
            return True
        most, now = max(1.0, 2 * self.rate), self.clock()
        tokens, then = self._left.pop(caller, (most, now))
        tokens = min(most, tokens + (now - then) * self.rate)
        self._left[caller] = (tokens - 1 if tokens >= 1 else tokens, now)
        while len(self._left) > MOST_CALLERS:
            self._left.popitem(last=False)
        return tokens >= 1
