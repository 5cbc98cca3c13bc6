"""Queries from the bodies of requests: JSON, npz archives and images, refused in a sentence where they are bad."""

import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archipel_serve.manifest import Manifest
from archipel_serve.models import Prior
from archipel_serve.pixels import decode, open_image
from archipel_serve.preparation import Preparation

MEBIBYTE = 1 << 20


class RefusedError(Exception):
    """A request that isn't answered.

    Args:
        status: of HTTP, 4xx, or 503 where other servers are down.
        detail: a sentence for people.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


@dataclass(frozen=True)
class Limits:
    """What a request may hold.

    Args:
        body: bytes of a request.
        unpacked: bytes that an archive may unpack to.
        pixels: of an image.
        queries: in a request.
    """

    body: int = 16 * MEBIBYTE
    unpacked: int = 64 * MEBIBYTE
    pixels: int = 20_000_000
    queries: int = 10_000


@dataclass(frozen=True)
class Asked:
    """What a request asks.

    Args:
        x: ``(n, …)`` prepared queries; ``None`` where features came instead.
        features: what :meth:`Models.embed` gives, where they came instead of queries.
        site: who answers; ``None``: whom the queries are routed to.
        prior: of the sites among the queries.
        top: the number of sites to name for each query.
    """

    x: NDArray[Any] | None
    features: list[NDArray[Any]] | None = None
    site: str | None = None
    prior: Prior | None = None
    top: int = 3

    @property
    def count(self) -> int:
        """The number of queries."""
        return len(self.x) if self.x is not None else len((self.features or [np.empty(0)])[0])


FIELDS = ("x", "columns", "features", "site", "prior", "top")


def from_json(body: bytes, manifest: Manifest, limits: Limits) -> Asked:
    """Read ``{"x": …}`` with ``"columns"``, ``"site"``, ``"prior"`` and ``"top"`` by choice.

    Raises:
        RefusedError: malformed JSON, unknown fields, or queries that don't fit the model.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"The body isn't JSON that can be read: {_reason(error)}.") from error
    if not isinstance(content, dict):
        raise RefusedError(422, 'The body must be a JSON object such as {"x": [[63, 145]]}.')
    if unknown := [name for name in content if name not in FIELDS]:
        raise RefusedError(422, f"Unknown field {unknown[0][:80]!r}; there are {', '.join(FIELDS)}.")
    options = read_options(content)
    if ("x" in content) == ("features" in content):
        raise RefusedError(422, 'Give either "x", the queries, or "features" that the router computed.')
    if "features" in content:
        return Asked(None, _features(content["features"], manifest, limits), **options)
    columns = content.get("columns")
    if columns is not None and not (isinstance(columns, list) and all(isinstance(name, str) for name in columns)):
        raise RefusedError(422, '"columns" must be a list of names.')
    x = content["x"]
    if isinstance(x, list):  # JSON holds no arrays and no images, for which lists of other origin are searched
        try:
            x = np.asarray(x)
        except (ValueError, OverflowError) as error:
            detail = "its rows have different lengths. Give all the same shape."
            raise RefusedError(422, f"The queries can't be used: x isn't an array: {detail}") from error
    return Asked(prepared(x, manifest.preparation, limits, columns), **options)


def from_npz(body: bytes, preparation: Preparation, limits: Limits) -> NDArray[Any]:
    """Read and prepare the array ``x`` of an npz archive, or an npy file.

    Raises:
        RefusedError: a damaged file, pickled objects, or one that unpacks to more than is allowed.
    """
    try:
        if body[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                if "x.npy" not in archive.namelist():
                    raise ValueError("it holds no array x; write it by np.savez(file, x=x)")
                with archive.open("x.npy") as member:
                    body = member.read(limits.unpacked + 1)
            if len(body) > limits.unpacked:
                raise ValueError(f"its array unpacks to more than {limits.unpacked:,} bytes")
        array = _array(body)
    except Exception as error:  # a damaged archive can make its reader fail in any way
        raise RefusedError(400, f"The archive can't be read: {_reason(error)}.") from error
    return prepared(array, preparation, limits)


def _array(data: bytes) -> NDArray[Any]:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError(f"its array has the format {version}")
    shape, fortran, dtype = read[version](stream)
    if dtype.hasobject:
        raise ValueError("its array holds Python objects, which aren't read")
    content = memoryview(data)[stream.tell() :]
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"its array claims the shape {shape}, which doesn't fit its {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def from_images(bodies: Sequence[bytes], preparation: Preparation, limits: Limits) -> NDArray[Any]:
    """Decode and prepare image files, one query each.

    Raises:
        RefusedError: a model of other data, no image, a damaged one, or one of too many pixels.
    """
    if preparation.kind != "image":
        raise RefusedError(415, f"The model takes {preparation.kind} data of shape {preparation.shape}, not images.")
    found = []
    for body in bodies:
        try:
            with open_image(io.BytesIO(body)) as image:
                if image.width * image.height > limits.pixels:
                    raise ValueError(
                        f"it has {image.width} × {image.height} pixels; at most {limits.pixels:,} are read"
                    )
                pixels = decode(image)
        except Exception as error:  # a damaged image can make its decoder fail in any way
            raise RefusedError(400, f"The image can't be read: {_reason(error)}.") from error
        found.append(prepared(pixels, preparation, limits))
    return np.concatenate(found)


def prepared(x: Any, preparation: Preparation, limits: Limits, columns: list[str] | None = None) -> NDArray[Any]:
    """Prepare raw queries.

    Raises:
        RefusedError: a shape, type or value that the model doesn't take.
    """
    try:
        found = preparation.prepared(x, columns)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise RefusedError(422, f"The queries can't be used: {_reason(error)}.") from error
    if len(found) > limits.queries:
        raise RefusedError(413, f"The request holds {len(found)} queries; at most {limits.queries} are allowed.")
    return found


def read_options(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``site``, ``prior`` and ``top``, which may be text.

    Raises:
        RefusedError: a value that isn't allowed.
    """
    site, prior, top = content.get("site"), content.get("prior"), content.get("top", 3)
    if isinstance(top, str) and top.isdecimal() and len(top) < 7:
        top = int(top)
    if isinstance(prior, str) and prior != "uniform":
        try:
            prior = [float(share) for share in prior.split(",")]
        except ValueError as error:
            raise RefusedError(422, '"prior" must be "uniform", or a share for each site.') from error
    if site is not None and not isinstance(site, str):
        raise RefusedError(422, '"site" must be a name.')
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise RefusedError(422, '"top" must be a whole number of at least 1.')
    return {"site": site, "prior": prior, "top": top}


def _features(given: Any, manifest: Manifest, limits: Limits) -> list[NDArray[Any]]:
    if not manifest.features:
        raise RefusedError(422, f"The models of {manifest.method} share no features: send the query.")
    if not isinstance(given, dict) or set(given) != set(manifest.features):
        raise RefusedError(422, f'"features" must be an object of {", ".join(manifest.features)}.')
    found = []
    for name, form in manifest.features.items():
        try:
            part = np.asarray(given[name], form["dtype"])
        except (ValueError, TypeError, OverflowError) as error:
            raise RefusedError(422, f"The features aren't arrays of numbers: {_reason(error)}.") from error
        shape = tuple(form["shape"])
        if part.shape[1:] != shape or not part.ndim:
            inner = ", ".join(map(str, shape))
            raise RefusedError(422, f"{name} has shape {part.shape}; expected is (n, {inner}).")
        found.append(part)
    if any(len(part) != len(found[0]) or not np.isfinite(part).all() for part in found):
        raise RefusedError(422, "The features must be finite, and as many of each.")
    if len(found[0]) > limits.queries:
        raise RefusedError(413, f"The request holds {len(found[0])} queries; at most {limits.queries} are allowed.")
    return found


def _reason(error: BaseException) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "…"
