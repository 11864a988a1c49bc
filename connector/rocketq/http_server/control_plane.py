"""The FastAPI app of a server's control plane: what is the same for every server.

Every call passes `Admission.admit` with the rule of its route and the resource that its path names, before
its body is read. A query parameter that a route does not know is refused, every error is answered with an
error document, no path is redirected, and an administrative call has a line in the audit log.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from rocketq.http_server.admission import Admission, Head
from rocketq.http_server.audit import audited, is_administrative
from rocketq.http_server.error_answers import install_error_answers
from rocketq.http_server.known_parameters import known_parameters_only
from rocketq.http_server.permissions import CLUSTER, NO_ROUTE, rule_of


def control_plane(title: str, description: str, admission: Admission) -> FastAPI:
    """Return an app without routes; `openapi.add_documentation` adds its pages at last."""
    app = FastAPI(
        title=title,
        version=version("rocketq"),
        description=description,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(known_parameters_only)],
    )
    install_error_answers(app)
    app.router.route_class = _admitted_route(admission)
    not_found = app.router.default

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        admission.admit(head_of(scope), NO_ROUTE, CLUSTER)
        await not_found(scope, receive, send)

    app.router.default = no_route
    return app


def head_of(scope: Scope) -> Head:
    """Return the head of an ASGI request."""
    server = scope["server"]
    return Head(scope["headers"], server[0] if server else "", scope["http_version"])


def _admitted_route(admission: Admission) -> type[APIRoute]:
    """Return the class of the routes: each admits a call before it handles it."""

    class AdmittedRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            rule = rule_of(self.endpoint) or NO_ROUTE
            resource = rule.named(scope["path_params"])
            handle = super().handle

            async def admitted(receive: Receive, send: Send) -> None:
                admission.admit(head_of(scope), rule, resource)
                await handle(scope, receive, send)

            if is_administrative(rule, scope["method"]):
                await audited(self.endpoint.__name__, resource, scope, receive, send, admitted)
            else:
                await admitted(receive, send)

    return AdmittedRoute
