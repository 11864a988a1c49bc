"""The console as an ASGI app: routes, admission, threads, and what every answer has.

  request --> Admission (Host, Origin, media type) --> route --> view, on a thread --> HTML
                                                         |
                  a form: its token, and whether changes are allowed

* A view waits for brokers, so it runs on a thread of a pool; the event loop only speaks HTTP.
* A page of another site can neither read a page here (`Host`, against DNS rebinding) nor send a form: the
  browser tells the other origin, and the form lacks the token, which only this process's pages have.
* The Content-Security-Policy allows scripts and styles from files of this server alone, so a message that
  is shown cannot run as a script even if the escaping had a hole.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rocketq.console import assets
from rocketq.console.console import Call, Console, Page
from rocketq.console.pages import Renderer
from rocketq.console.views import (
    brokers,
    dead_letters,
    delayed,
    groups,
    live_tail,
    messages,
    overview,
    search,
    sinks,
    topics,
    transactions,
)
from rocketq.errors import InvalidRequest, NotFound, RocketqError
from rocketq.errors.remote_errors import MethodNotAllowed, NoPermission
from rocketq.http_server.admission import Admission, Head, accepted_hosts
from rocketq.http_server.error_answers import read_body, unforeseen
from rocketq.http_server.permissions import CLUSTER, Permission, Resource, Rule

View = Callable[[Console, Call], Page]

WORKERS: Final = 16
FORM_BYTES_MAX: Final = 256 * 1024
_FORM: Final = b"application/x-www-form-urlencoded"
_LOOK: Final = Rule(Permission.METRICS, Resource.CLUSTER, media_types=())
_CHANGE: Final = Rule(Permission.ADMIN, Resource.CLUSTER, media_types=(_FORM,))
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Not "no-referrer": a browser would then send forms with "Origin: null", and they would be refused.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

_LOOKS: Final[dict[str, View]] = {
    "/": overview.overview,
    "/search": search.search,
    "/brokers": brokers.brokers,
    "/brokers/{broker}": brokers.broker,
    "/topics": topics.topics,
    "/topics/{topic}": topics.topic,
    "/topics/{topic}/tail": live_tail.page,
    "/topics/{topic}/tail/rows": live_tail.rows,
    "/messages": messages.find,
    "/message": messages.message,
    "/groups": groups.groups,
    "/groups/{group}": groups.group,
    "/groups/{group}/reset": groups.reset_preview,
    "/groups/{group}/dead-letters": dead_letters.letters,
    "/delayed": delayed.delayed,
    "/delayed/message": delayed.message,
    "/transactions": transactions.transactions,
    "/transactions/{transaction}": transactions.transaction,
    "/sinks": sinks.sinks,
    "/sinks/{sink}": sinks.sink,
}
_CHANGES: Final[dict[str, View]] = {
    "/groups/{group}/reset": groups.reset,
    "/groups/{group}/dead-letters": dead_letters.resend,
    "/delayed/message": delayed.cancel,
    "/transactions/{transaction}": transactions.decide,
}


class ConsoleApp:
    """The ASGI app of one console; the runner's hooks are its attributes."""

    def __init__(self, console: Console) -> None:
        self.exit_code = 0
        self.console = console
        self._token = secrets.token_urlsafe(32)
        config = console.config
        self._admission = Admission(accepted_hosts(config.host, allowed=config.allowed_hosts))
        self._assets = assets.read_all()
        joined = b"".join(self._assets.values())
        self._renderer = Renderer(
            {
                "allow_changes": config.allow_changes,
                "token": self._token,
                "nameservers": ",".join(console.admin.nameservers),
                "version": version("rocketq"),
                "build": hashlib.sha256(joined).hexdigest()[:12],
            }
        )
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="rocketq-console")
        self._app = Starlette(
            routes=self._routes(), lifespan=self._lifespan, exception_handlers={HTTPException: self._refused}
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            rule = _CHANGE if scope["method"] == "POST" else _LOOK
            local = str((scope.get("server") or ("",))[0])
            self._admission.admit(Head(scope["headers"], local, scope["http_version"]), rule, CLUSTER)
            await self._app(scope, receive, send)
        except RocketqError as error:
            await self._error(Request(scope), error)(scope, receive, send)

    def _routes(self) -> list[Route]:
        routes = [
            Route("/assets/{build}/{name:path}", self._asset),
            Route("/plots.json", self._plots),
            Route("/livez", self._livez),
        ]
        for path, view in _LOOKS.items():
            change = _CHANGES.get(path)
            methods = ["GET"] if change is None else ["GET", "POST"]
            routes.append(Route(path, self._endpoint(view, change), methods=methods))
        return routes

    def _endpoint(self, view: View, change: View | None) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            form: dict[str, list[str]] = {}
            chosen = view
            try:
                if request.method == "POST" and change is not None:
                    form = await self._form(request)
                    chosen = change
                query = dict(request.query_params)
                call = Call(request.url.path, dict(request.path_params), query, form)
                return await self._in_thread(lambda: self._answer(request, chosen(self.console, call)))
            except RocketqError as error:
                return self._error(request, error)
            except Exception as error:  # noqa: BLE001 - logged with its trace, and told to whoever asked
                return self._error(request, unforeseen(error, request.url.path))

        return endpoint

    async def _form(self, request: Request) -> dict[str, list[str]]:
        """Return the fields of a form; raise NoPermission if the console is to change nothing."""
        if not self.console.config.allow_changes:
            raise NoPermission(
                "A change", "this console, which is read-only",
                hint="Start it with rocketq console --allow-changes.",
            )  # fmt: skip
        pieces = await read_body(request.scope, request.receive, FORM_BYTES_MAX)
        try:
            form = parse_qs(b"".join(pieces).decode("utf-8"), keep_blank_values=True, max_num_fields=2_000)
        except ValueError as error:
            raise InvalidRequest("the form", str(error)) from error
        given = form.get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise InvalidRequest(
                "the form", "it is not from a page of this console, or the console was started again since",
                hint="Load the page again, and send the form from there.",
            )  # fmt: skip
        return form

    def _answer(self, request: Request, page: Page) -> Response:
        now_us = self.console.clock.now_us()
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        html = self._renderer.html(page, request.url.path, target, now_us)
        return Response(html, page.status, _HEADERS, "text/html; charset=utf-8")

    def _error(self, request: Request, error: RocketqError) -> Response:
        page = Page("error.html", "Error", {"error": error}, refreshes=False, status=error.status)
        return self._answer(request, page)

    async def _refused(self, request: Request, error: Exception) -> Response:
        path = request.url.path
        no_such_page = isinstance(error, HTTPException) and error.status_code == 404
        told = NotFound("page", path) if no_such_page else MethodNotAllowed(request.method, path)
        return self._error(request, told)

    async def _in_thread(self, work: Callable[[], Response]) -> Response:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._assets:
            raise NotFound("asset", name)
        # The path names the content, so a browser may keep it.
        headers = _HEADERS | {"cache-control": "public, max-age=31536000, immutable"}
        return Response(self._assets[name], 200, headers, assets.SERVED[name])

    async def _plots(self, request: Request) -> Response:
        def answer() -> Response:
            body = json.dumps(brokers.plots(self.console))
            return Response(body, 200, _HEADERS, "application/json")

        return await self._in_thread(answer)

    async def _livez(self, request: Request) -> Response:
        return Response('{"status":"ok"}', 200, _HEADERS, "application/json")

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.console.observer.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.console.close)
            self._pool.shutdown(wait=False, cancel_futures=True)
