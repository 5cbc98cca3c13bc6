"""Bodies of requests: read up to a limit, and told apart by their content type."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from archipel_serve.manifest import Manifest
from archipel_serve.server.queries import Asked, Limits, RefusedError, from_images, from_json, from_npz, read_options

ARCHIVES = ("application/npz", "application/x-npz", "application/zip", "application/octet-stream", "application/x-npy")
SMALL = 1 << 16
"""Bytes of JSON that are read without leaving the event loop."""
MOST_FILES = 256
T = TypeVar("T")


async def read_asked(request: Request, manifest: Manifest, limits: Limits, reading: asyncio.Semaphore) -> Asked:
    """Read a request.

    Args:
        request: with JSON, an npz archive, an image, or a form with files of these.
        manifest: of the bundle.
        limits: what it may hold.
        reading: bounds how many bodies are decoded at a time.

    Raises:
        RefusedError: too large, of another type, or unreadable.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    body = await read_body(request, limits.body)

    async def decoded(function: Callable[[], T]) -> T:
        async with reading:
            return await asyncio.to_thread(function)

    if kind == "application/json" or kind.endswith("+json"):
        if len(body) <= SMALL:
            return from_json(body, manifest, limits)
        return await decoded(lambda: from_json(body, manifest, limits))
    if kind in ARCHIVES:
        x = await decoded(lambda: from_npz(body, manifest.preparation, limits))
        return Asked(x, **read_options(dict(request.query_params)))
    if kind.startswith("image/"):
        x = await decoded(lambda: from_images([body], manifest.preparation, limits))
        return Asked(x, **read_options(dict(request.query_params)))
    if kind == "multipart/form-data":
        files, options = await _form(request, body)
        if any(part[:2] == b"PK" or part[:6] == b"\x93NUMPY" for part in files):
            if len(files) > 1:
                raise RefusedError(422, "Send one archive in a form, or several images.")
            x = await decoded(lambda: from_npz(files[0], manifest.preparation, limits))
        else:
            x = await decoded(lambda: from_images(files, manifest.preparation, limits))
        return Asked(x, **options)
    raise RefusedError(
        415, f"The content type {kind[:80]!r} isn't read; send application/json, application/npz, image/…, or a form."
    )


async def read_body(request: Request, most: int) -> bytes:
    """Read a request's body.

    Raises:
        RefusedError: more bytes than are allowed.
    """
    refusal = RefusedError(413, f"The request is larger than {most:,} bytes. Divide it.", {"Connection": "close"})
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > most:
        raise refusal
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise refusal
        parts.append(part)
    return b"".join(parts)


async def _form(request: Request, body: bytes) -> tuple[list[bytes], dict[str, Any]]:
    """Return the files and options of a form."""
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        async with Request(request.scope, receive).form(max_files=MOST_FILES, max_fields=8) as form:
            files = [await part.read() for _, part in form.multi_items() if isinstance(part, UploadFile)]
            fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    except (HTTPException, ValueError, KeyError, AssertionError) as error:
        detail = getattr(error, "detail", error)
        raise RefusedError(400, f"The form can't be read: {detail!s:.300}.") from error
    if not files:
        raise RefusedError(422, "The form has no file. Send images or one npz archive as files.")
    return files, read_options(fields)
