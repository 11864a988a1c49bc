"""Running a service: bind, announce, serve, and stop in good order.

When it listens, a service prints one line of JSON on stdout and nothing else ever:

    {"service": "broker", "name": "broker-a", "address": "http://127.0.0.1:10911", "pid": 4711}

so whoever started it on port 0 learns where it is; logs go to stderr. SIGTERM and
SIGINT stop it: the app's `begin_shutdown`, if it has one, releases held calls, no
new connections are taken, running calls finish, the lifespan ends, exit code 0 (or
the app's `exit_code`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import structlog
import uvicorn

from rocketq.errors import InvalidConfiguration
from rocketq.service.guard import ServerLimits, guarded

#: How long running requests may take once a stop was asked for.
GRACE_S: Final = 10
_PARENT_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Binding:
    """Where to listen: port 0 takes a free one; anything but loopback must be asked for."""

    host: str = "127.0.0.1"
    port: int = 0
    insecure: bool = False
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        if not self.insecure and not _is_loopback(self.host):
            raise InvalidConfiguration(
                "host",
                self.host,
                "it can be reached from other machines, and the service has no authentication yet",
                "Bind 127.0.0.1, or pass --insecure on a network you trust.",
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(binding: Binding) -> socket.socket:
    """Return a listening socket; raise InvalidConfiguration if the address cannot be had."""
    family = socket.AF_INET6 if ":" in binding.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((binding.host, binding.port))
    except OSError as error:
        listener.close()
        raise InvalidConfiguration(
            "port", binding.port, f"cannot listen on {binding.host}: {error.strerror}", "Use a free port."
        ) from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn waits for running requests before it tells the app; held calls must hear of it first."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        begin_shutdown = getattr(self.config.app, "begin_shutdown", None)
        if begin_shutdown is not None:
            begin_shutdown()
        await super().shutdown(sockets)


def _server(app: Any, limits: ServerLimits) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=guarded(limits),
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, limits.idle_ms // 1000),
        timeout_graceful_shutdown=GRACE_S,
    )
    return _Server(config)


def configure_logging() -> None:
    """Send structured logs, one JSON object a line, to stderr."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def serve(
    app: Any, *, service: str, name: str, listener: socket.socket, limits: ServerLimits, parent_pid: int = 0
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. `app` may set `app.exit_code`.

    With `parent_pid`, stop as well when that process is no longer the parent.
    """
    server = _server(app, limits)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        if parent_pid:
            _watch_parent(loop, server, parent_pid)
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        if server.started:
            line = {"service": service, "name": name, "address": address_of(listener), "pid": os.getpid()}
            print(json.dumps(line), flush=True)
        await serving

    def stop(*_: Any) -> None:
        server.should_exit = True

    # Until uvicorn takes over, and again after a clean stop, when it raises the signal anew: a stop
    # that was asked for is no failure.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())
    if not server.started:
        return 1
    return int(getattr(app, "exit_code", 0))


def _loop_factory() -> Any:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _watch_parent(loop: asyncio.AbstractEventLoop, server: uvicorn.Server, parent_pid: int) -> None:
    def check() -> None:
        if os.getppid() != parent_pid:
            server.should_exit = True
        else:
            loop.call_later(_PARENT_POLL_S, check)

    check()


class ServerThread:
    """A service on a thread of this process, for tests and notebooks; listens on a free port.

    `with ServerThread(app) as server:` starts it, `server.address` is its base URL, and
    leaving the block stops it and waits for it.
    """

    def __init__(self, app: Any, *, binding: Binding | None = None) -> None:
        self._binding = binding or Binding()
        self._listener = listen(self._binding)
        self.address = address_of(self._listener)
        self.app = app
        self._server = _server(app, self._binding.limits)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rocketq-service", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        async def run() -> None:
            serving = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.002)
            if not self._server.started:
                self._failure = RuntimeError("the service did not start; its log says why")
            self._started.set()
            await serving

        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(run())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that started this one
            self._failure = error
            self._started.set()
