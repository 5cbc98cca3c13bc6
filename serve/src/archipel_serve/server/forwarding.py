"""Questions sent on to the sites' own servers; where one is down, to the next by posterior."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from archipel_serve.server.queries import RefusedError

LARGEST = 64 << 20
"""Bytes of an answer that are read."""


class DownError(Exception):
    """A site's server that gives no answer."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Site:
    """A site's own server.

    Args:
        url: such as ``https://lyon.example:8443``.
        send: ``"features"`` that the router computed, or the prepared ``"query"``.
        key: an API key of that server.
        ca: a file with the certificates to trust; ``None``: the system's.
        timeout: seconds.
    """

    url: str
    send: Literal["features", "query"] = "query"
    key: str | None = None
    ca: str | None = None
    timeout: float = 2.0

    def ask(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's answer to ``POST /answer``.

        Raises:
            DownError: it can't be reached, takes too long, or answers with an error.
        """
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = Request(f"{self.url.rstrip('/')}/answer", json.dumps(content).encode(), headers)
        try:
            context = ssl.create_default_context(cafile=self.ca)
            opener = build_opener(ProxyHandler({}), _NoRedirects(), HTTPSHandler(context=context))
            with opener.open(request, timeout=self.timeout) as response:
                found = json.loads(response.read(LARGEST))
            if not isinstance(found, dict) or not isinstance(found.get("answers"), list):
                raise DownError("it gives no answers")
        except HTTPError as error:
            raise DownError(f"it answers with the status {error.code}") from error
        except (URLError, OSError, ValueError) as error:
            raise DownError(f"it can't be reached ({error})") from error
        return found


def read_sites(file: Path, names: tuple[str, ...]) -> dict[str, Site]:
    """Read ``{"Lyon": {"url": "https://…", "send": "features", "key_file": …, "ca": …}, …}``.

    Raises:
        ValueError: a site that the bundle doesn't have, or settings that aren't known.
    """
    content = json.loads(file.read_text())
    if not isinstance(content, dict):
        raise ValueError(f'{file} must be a JSON object such as {{"Lyon": {{"url": "https://lyon:8443"}}}}.')
    found = {}
    for name, given in content.items():
        if name not in names:
            raise ValueError(f"{file} names the site {name!r}; the bundle has {', '.join(names[:20])}.")
        settings = dict(given)
        key_file = settings.pop("key_file", None)
        if key_file is not None:
            settings["key"] = (file.parent / key_file).read_text().strip()
        if settings.get("ca") is not None:
            settings["ca"] = str(file.parent / settings["ca"])
        if unknown := set(settings) - set(Site.__dataclass_fields__):
            raise ValueError(f"{file}: {name} has the unknown setting {min(unknown)!r}.")
        url, send = settings.get("url"), settings.get("send", "query")
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise ValueError(f"{file}: {name} needs a url that begins with https:// (or http:// on loopback).")
        if send not in ("features", "query"):
            raise ValueError(f"{file}: {name} sends {send!r}; it is features or query.")
        found[name] = Site(**settings)
    return found


def forward(
    sites: Mapping[str, Site],
    names: tuple[str, ...],
    order: list[list[int]],
    contents: Mapping[str, list[Any]],
    features: Mapping[str, list[Any]],
) -> list[dict[str, Any]]:
    """Answer queries by the sites' own servers.

    Args:
        sites: their servers; a site without one is passed over.
        names: of all sites.
        order: for each query the sites, the most likely one first.
        contents: ``{"x": queries}``, in JSON's types.
        features: of the queries, by their names; empty where models share none.

    Returns:
        An answer for each query; those that another than the first site gave say who was down, under
        ``"unavailable"``.

    Raises:
        RefusedError: 503, because no site's server answers.
    """
    answers: list[dict[str, Any]] = [{} for _ in order]
    down: dict[str, str] = {name: "it has no server" for name in names if name not in sites}
    waiting = list(range(len(order)))
    while waiting:
        groups: dict[str, list[int]] = {}
        for i in waiting:
            chosen = next((names[s] for s in order[i] if names[s] not in down), None)
            if chosen is None:
                reasons = "; ".join(f"{name}: {why}" for name, why in down.items())
                raise RefusedError(503, f"No site's server answers ({reasons:.500}). Try again later.")
            groups.setdefault(chosen, []).append(i)
        waiting = []
        for name, asked in groups.items():
            site = sites[name]
            parts: Mapping[str, Any] = contents
            if site.send == "features" and features:
                sent: dict[str, Any] = {"features": {k: [values[i] for i in asked] for k, values in features.items()}}
            else:
                sent = {k: [values[i] for i in asked] for k, values in parts.items()}
            try:
                found = site.ask(sent | {"site": name})["answers"]
                if len(found) != len(asked):
                    raise DownError("it gives another number of answers")
            except DownError as error:
                down[name] = str(error)
                waiting += asked
                continue
            for i, answer in zip(asked, found, strict=True):
                first = order[i][: [names[s] for s in order[i]].index(name)]
                passed = {names[s]: down[names[s]] for s in first}
                answers[i] = {**answer, **({"unavailable": passed} if passed else {})}
    return answers
