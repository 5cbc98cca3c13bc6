"""The interface of a server as an OpenAPI document, with examples of the bundle's own queries."""

from importlib.metadata import version
from typing import Any

import numpy as np

from archipel_serve.manifest import Manifest


def document(manifest: Manifest) -> dict[str, Any]:
    """Return the OpenAPI document of a bundle's server.

    Args:
        manifest: of the bundle. Its mean example, which is nobody's, is the example of a query.
    """
    preparation = manifest.preparation
    axes = (-1, 1, 1) if preparation.kind == "image" else (-1,)
    mean = np.reshape(preparation.mean, axes) * preparation.scale
    example = np.broadcast_to(mean, preparation.shape)
    if preparation.storage == np.uint8:
        example = example.round().astype(np.uint8)
    query: dict[str, Any] = {"x": [example.round(4).tolist()]}
    if preparation.features:
        query["columns"] = list(preparation.features)
    names = manifest.names
    route = {"site": names[0], "probability": 0.9, "top": [{"site": names[0], "probability": 0.9}]}
    answer: dict[str, Any] = {"answered_by": names[0]}
    if manifest.classes is None:
        answer["values"] = [0.0] * manifest.outputs
    else:
        share = 1 / len(manifest.classes)
        answer |= {"label": manifest.classes[0], "probabilities": dict.fromkeys(manifest.classes, share)}
    if "router" in manifest.graphs:
        answer |= route
    paths: dict[str, Any] = {
        "/answer": {"post": _post("Answer queries", query, {"answers": [answer]})},
        "/health": {"get": _get("Say that the server runs", {"status": "ok"})},
        "/metrics": {"get": {"summary": "Metrics for Prometheus", "responses": {"200": {"description": "Text"}}}},
    }
    if "router" in manifest.graphs:
        paths["/route"] = {"post": _post("Find the sites that queries belong to", query, {"routes": [route]})}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"archipel-serve: {manifest.method}", "version": version("archipel-serve")},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _post(summary: str, example: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    fields = {
        "x": {"description": "one query or many"},
        "columns": {"type": "array", "items": {"type": "string"}, "description": "names of a table's columns"},
        "features": {"type": "object", "description": "what a router computed, in place of x"},
        "site": {"type": "string", "description": "who answers; default: whom the query is routed to"},
        "prior": {"description": "uniform, or a share for each site, of the sites among the queries"},
        "top": {"type": "integer", "minimum": 1, "default": 3, "description": "the number of sites to name"},
    }
    schema = {"type": "object", "properties": fields, "additionalProperties": False}
    json = {"schema": schema, "examples": {"the mean of the training data": {"value": example}}}
    form = {"schema": {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}}
    refused = {"description": "refused, with a sentence", "content": {"application/json": {}}}
    return {
        "summary": summary,
        "security": [{"key": []}, {}],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": json,
                "application/npz": binary,
                "image/png": binary,
                "image/jpeg": binary,
                "multipart/form-data": form,
            },
        },
        "responses": {
            "200": {"description": "found", "content": {"application/json": {"example": found}}},
            **dict.fromkeys(("400", "401", "409", "413", "415", "422", "429"), refused),
        },
    }


def _get(summary: str, example: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"example": example}}
    return {"summary": summary, "responses": {"200": {"description": "ok", "content": content}}}
