"""Running a service: bind, announce, serve, and stop in good order.

    listen() ──> app.bound(address) ──> the app's startup ──> announce, take connections
                                                                        │
    exit code <── the app's shutdown <── calls end <── app.begin_shutdown() <── app.prepare_shutdown()
                                                                        │
                                               SIGTERM, SIGINT, stop(), the parent is gone

When a service listens, it prints one line of JSON on stdout. It prints nothing else there:

    {"service": "broker", "name": "broker-a", "address": "http://127.0.0.1:10911", "pid": 4711}

So whoever started the service on port 0 learns its address; systemd is told in its own way
(`service_manager`). Logs go to stderr. An app may have these hooks,
which are attributes of it:

    bound(address)     before the startup: a broker registers under this address
    prepare_shutdown() awaited on the loop while the server serves on: a master hands its office over
    begin_shutdown()   on the loop, before the server waits for running calls: the app answers held ones
    exit_code          what the process ends with; 0 without it
    connection_counts  where the connections of the server are counted, for the app's /metrics
    take_small_call(call)
                       on the loop: takes a small call and answers it without a task, or returns False
                       (`connection.small_call`)

The socket has its address before the app starts, but takes no connection until the app has
started. A client that calls a broker which recovers a long log is refused at once, and can call another one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import structlog
import uvicorn
from uvicorn.server import ServerState

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.connection.http_connection import ConnectionSettings, connection_class
from rocketq.http_server.connection.limits import ConnectionCounts, ServerLimits
from rocketq.http_server.service_manager import READY, tell_service_manager

#: Connections that may wait to be taken.
BACKLOG: Final = 2_048
#: As many open files as the system allows, up to this: connections and log files are many.
OPEN_FILES_MAX: Final = 65_536
#: macOS: OPEN_MAX in <sys/syslimits.h>.
MACOS_OPEN_FILES_MAX: Final = 10_240
_PARENT_POLL_S: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Binding:
    """Where to listen: port 0 takes a free one; anything but loopback must be asked for."""

    host: str = "127.0.0.1"
    port: int = 0
    insecure: bool = False
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise InvalidConfiguration("port", self.port, "must be from 0 to 65535")
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
    """Return a socket with its address; raise InvalidConfiguration if that cannot be had.

    It takes connections only once it is served.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            binding.host, binding.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InvalidConfiguration(
            "host", binding.host, f"it is not an address of this machine: {error.strerror}"
        ) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
    except OSError as error:
        listener.close()
        raise InvalidConfiguration(
            "port", binding.port, f"cannot listen on {binding.host}: {error.strerror}", "Use a free port."
        ) from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server with our protocol, and with the app's hooks called where the header says."""

    def __init__(self, app: Any, limits: ServerLimits, on_listening: Callable[[], None]) -> None:
        self.counts = _counts_of(app)
        self.listened = False
        self._app = app
        self._on_listening = on_listening
        settings = ConnectionSettings(limits, self.counts, getattr(app, "take_small_call", None))
        super().__init__(
            uvicorn.Config(
                app,
                http=connection_class(settings),
                interface="asgi3",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=max(1, limits.shutdown_ms // 1000),
            )
        )

    def stop(self) -> None:
        """Ask for a stop in good order; any thread may."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        bound = getattr(self._app, "bound", None)
        if bound is not None and sockets:
            bound(address_of(sockets[0]))
        await super().startup(sockets)
        if not self.should_exit:
            self.listened = True
            self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        prepare_shutdown = getattr(self._app, "prepare_shutdown", None)
        if prepare_shutdown is not None:
            await prepare_shutdown()
        begin_shutdown = getattr(self._app, "begin_shutdown", None)
        if begin_shutdown is not None:
            begin_shutdown()
        await super().shutdown(sockets)


def _counts_of(app: Any) -> ConnectionCounts:
    found = getattr(app, "connection_counts", None)
    return found if isinstance(found, ConnectionCounts) else ConnectionCounts()


def serve(
    app: Any, *, service: str, name: str, listener: socket.socket, limits: ServerLimits, parent_pid: int = 0
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. `app` may set `app.exit_code`.

    With `parent_pid`, stop as well when that process is gone.
    """
    line = {"service": service, "name": name, "address": address_of(listener), "pid": os.getpid()}

    def announce() -> None:
        print(json.dumps(line), flush=True)
        tell_service_manager(READY)

    server = _Server(app, limits, announce)

    async def run() -> None:
        if parent_pid:
            _watch_parent(asyncio.get_running_loop(), server, parent_pid)
        await server.serve(sockets=[listener])

    def stop(*_: Any) -> None:
        server.stop()

    _raise_open_files_limit()
    # Until uvicorn takes over, and again after a clean stop, when it raises the signal anew: a stop
    # that was asked for is no failure.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run())
    except SystemExit:
        # uvicorn's way to say that the app did not start; the app or its log knows why.
        return int(getattr(app, "exit_code", 0)) or 1
    return int(getattr(app, "exit_code", 0)) if server.started else 1


def _loop_factory() -> Any:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    for files in (OPEN_FILES_MAX, MACOS_OPEN_FILES_MAX):
        wanted = files if hard == resource.RLIM_INFINITY else min(hard, files)
        if soft < wanted:
            # macOS refuses more than its own bound even where it calls the hard limit infinite.
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return


def _watch_parent(loop: asyncio.AbstractEventLoop, server: _Server, parent_pid: int) -> None:
    # A parent that ends leaves its children to another process; of one that merely
    # started us, through a wrapper, only its own end can be seen.
    ours = os.getppid() == parent_pid

    def check() -> None:
        if (os.getppid() == parent_pid) if ours else _exists(parent_pid):
            loop.call_later(_PARENT_POLL_S, check)
        else:
            structlog.get_logger("rocketq.http_server").warning("parent_is_gone", parent_pid=parent_pid)
            server.stop()

    check()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It is there, and somebody else's.
        return True
    return True


class ServerThread:
    """A service on a thread of this process, for tests and notebooks; listens on a free port.

    `with ServerThread(app) as server:` starts it, `server.address` is its base URL, and
    leaving the block stops it and waits for it.
    """

    def __init__(
        self, app: Any, *, binding: Binding | None = None, limits: ServerLimits | None = None
    ) -> None:
        binding = binding or Binding()
        self._listener = listen(binding)
        self.address = address_of(self._listener)
        self.app = app
        self._server = _Server(app, limits or binding.limits, self._listening)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rocketq-service", daemon=True)

    @property
    def counts(self) -> ConnectionCounts:
        """The counts of this service's connections."""
        return self._server.counts

    @property
    def settings(self) -> uvicorn.Config:
        """uvicorn's settings of the service; they may be changed before it is started."""
        return self._server.config

    @property
    def state(self) -> ServerState:
        """uvicorn's state of the running service: its open connections and how many calls it answered."""
        return self._server.server_state

    def begin_stop(self) -> None:
        """Ask the service to stop, and do not wait for it."""
        self._server.stop()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the service's loop and return its result."""

        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        self._thread.join()

    def _listening(self) -> None:
        self._started.set()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                self._loop = runner.get_loop()
                runner.run(self._server.serve(sockets=[self._listener]))
        except SystemExit:
            self._failure = RuntimeError("the service did not start; its log says why")
        except BaseException as error:  # noqa: BLE001 - handed to the thread that started this one
            self._failure = error
        finally:
            if not self._server.listened and self._failure is None:
                self._failure = RuntimeError("the service was stopped before it listened")
            self._listener.close()
            self._started.set()
