"""`/docs` and `/openapi.json`: the interface of the control plane, readable without the internet.

An installed package has the script and the style of the Swagger UI, and the server serves them itself,
because a machine that runs a broker often reaches no CDN. The page refers to nothing outside of its server,
and its Content-Security-Policy makes the browser enforce that.

`/openapi.json` is OpenAPI 3.1, as FastAPI writes it. The installed Swagger UI reads 3.0, so the page uses a
translation, `/docs/openapi.json`. For these documents the versions differ only in how they say "or null".
Bodies and answers are described by the types with which handlers are marked (`body_types`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import swagger_ui_bundle
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import Response

from rocketq.errors import NotFound
from rocketq.http_server.body_types import answer_type, body_type
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare

Described: TypeAlias = Mapping[str, Mapping[str, dict[str, Any]]]

_ASSETS: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon-32x32.png": "image/png",
}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; font-src 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" type="image/png" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
_START: Final = """SwaggerUIBundle({
  url: "/docs/openapi.json",
  dom_id: "#ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
"""


def add_documentation(app: FastAPI, beside: Described | None = None) -> None:
    """Add the pages to an app that was made with openapi_url=None.

    `beside` describes the calls that the server answers without FastAPI, by path and method.
    """
    directory = Path(swagger_ui_bundle.swagger_ui_path)
    app.openapi = lambda: _openapi(app, beside or {})  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def documentation() -> Response:
        return Response(_PAGE.format(title=app.title), media_type="text/html", headers=_HEADERS)

    @app.get("/docs/{asset}", include_in_schema=False)
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def documentation_asset(asset: str) -> Response:
        if asset == "start.js":
            return Response(_START, media_type="text/javascript", headers=_HEADERS)
        if asset == "openapi.json":
            return json_response(openapi_3_0(app.openapi()))
        if asset not in _ASSETS:
            raise NotFound("documentation asset", asset)
        # Not a FileResponse: it answers a wrong Range in plain text.
        data = await asyncio.to_thread((directory / asset).read_bytes)
        return Response(data, media_type=_ASSETS[asset], headers=_HEADERS)

    @app.get("/openapi.json", include_in_schema=False)
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def openapi_document() -> Response:
        return json_response(app.openapi())


def _openapi(app: FastAPI, beside: Described) -> dict[str, Any]:
    """Return the app's OpenAPI document; made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version=app.openapi_version,
            summary=app.summary,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        _describe_bodies(document, app)
        described = document["paths"]
        merged = {path: {**described.get(path, {}), **calls} for path, calls in beside.items()}
        document["paths"] = merged | {path: calls for path, calls in described.items() if path not in merged}
        app.openapi_schema = document
    return app.openapi_schema


def _describe_bodies(document: dict[str, Any], app: FastAPI) -> None:
    """Put in the bodies and answers that handlers are marked with, and the types they are made of."""
    marked = [
        (document["paths"][route.path_format][method.lower()], route.endpoint)
        for route in app.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    ]
    taken = [(one, kind) for one, handler in marked if (kind := body_type(handler)) is not None]
    given = [(one, *found) for one, handler in marked if (found := answer_type(handler)) is not None]
    kinds = sorted({kind for _, kind in taken} | {kind for _, kind, _ in given}, key=str)
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(kinds, schemas, strict=True))
    for operation, kind in taken:
        operation["requestBody"] = {"required": True, "content": _content(by_kind[kind])}
    for operation, kind, status in given:
        answer = operation["responses"].setdefault(str(status), {"description": HTTPStatus(status).phrase})
        answer["content"] = _content(by_kind[kind])
    described = document.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in components.items():
        described.setdefault(name, schema)


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def openapi_3_0(document: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document as one of 3.0, for what the two servers' documents use of it."""
    made: dict[str, Any] = _as_3_0(document)
    return made | {"openapi": "3.0.3"}


def _as_3_0(node: Any) -> Any:
    """Rewrite `anyOf: [X, null]` as `nullable`, and leave out an empty `required`, at any depth."""
    if isinstance(node, list):
        return [_as_3_0(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _as_3_0(value) for key, value in node.items() if (key, value) != ("required", [])}
    options = made.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        del made["anyOf"]
        made |= {"allOf" if len(rest) == 1 else "anyOf": rest, "nullable": True}
    return made
