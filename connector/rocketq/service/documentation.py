"""`/docs` and `/openapi.json`: the control plane's contract, readable without the internet.

The Swagger UI's script and style come from an installed package and are served from
here, since a machine that runs a broker often reaches no CDN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import swagger_ui_bundle
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

from rocketq.errors import NotFound
from rocketq.service.routes import Permission, Resource, declare

_ASSETS: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


def add_documentation(app: FastAPI) -> None:
    """Add the pages to an app that was made with docs_url=None and redoc_url=None."""
    directory = Path(swagger_ui_bundle.swagger_ui_path)

    @app.get("/docs", include_in_schema=False)
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def documentation() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=app.title,
            swagger_js_url="/docs/swagger-ui-bundle.js",
            swagger_css_url="/docs/swagger-ui.css",
            swagger_favicon_url="/docs/favicon-32x32.png",
        )

    @app.get("/docs/{asset}", include_in_schema=False)
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def documentation_asset(asset: str) -> FileResponse:
        if asset not in _ASSETS:
            raise NotFound("documentation asset", asset)
        return FileResponse(directory / asset, media_type=_ASSETS[asset])

    for route in app.routes:
        if getattr(route, "path", "") == "/openapi.json":
            declare(Permission.METRICS, Resource.CLUSTER)(route.endpoint)  # type: ignore[attr-defined]
