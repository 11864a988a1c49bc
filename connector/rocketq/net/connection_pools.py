"""The connections of one process: urllib3's pools for all calls, and plain connections for small calls.

`cut` ends every connection at once, also those that a thread is waiting on. A connection that is made or
taken at the same moment sees `is_cut` before it begins to wait.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from typing import Any, Final, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import LocationValueError

from rocketq.config import TransportConfig
from rocketq.errors import InvalidConfiguration
from rocketq.net.small_call_connection import SmallCallConnection

_ADDRESS_HINT: Final = "An address looks like http://127.0.0.1:9876."


class _Tracked:
    """Connections that `close` can cut, and whose sends and waits share the call's timeout."""

    pools: ConnectionPools
    _began_at: float = 0.0

    def connect(self) -> None:
        connection = cast(HTTPConnection, self)
        timeout = connection.timeout
        if isinstance(timeout, int | float):
            connection.timeout = min(timeout, self.pools.connect_timeout_s)
        try:
            cast(Any, super()).connect()
        finally:
            connection.timeout = timeout
        self.pools.opened(self)
        self._refuse_if_cut()

    def _refuse_if_cut(self) -> None:
        # A call may begin just before `close` and get here after it: its connection was opened,
        # or taken from the pool, too late to be cut, so it must not begin to wait.
        if self.pools.is_cut:
            raise ConnectionAbortedError("the transport was closed")

    def request(self, *args: Any, **kwargs: Any) -> None:
        self._refuse_if_cut()
        self._began_at = time.monotonic()
        cast(Any, super()).request(*args, **kwargs)

    def send(self, data: Any) -> None:
        connection = cast(HTTPConnection, self)
        if connection.sock is None:
            connection.connect()
        # A body comes in pieces, and urllib3 sets a reused socket's timeout only before it receives.
        sock, left = connection.sock, self._left_s()
        if sock is not None and left is not None:
            sock.settimeout(left)
        self.pools.call.sent = True
        cast(Any, super()).send(data)

    def getresponse(self) -> Any:
        # urllib3 has put the timeout for the answer in the place of that for the request.
        cast(HTTPConnection, self).timeout = self._left_s()
        return cast(Any, super()).getresponse()

    def _left_s(self) -> float | None:
        """Return what is left of the timeout that holds now, counted from when the request began."""
        timeout = cast(HTTPConnection, self).timeout
        if not isinstance(timeout, int | float):
            return None
        left = self._began_at + timeout - time.monotonic()
        if left <= 0:
            raise TimeoutError("the call's time is up")
        return left


class ConnectionPools:
    """The connection pools of one process."""

    def __init__(self, config: TransportConfig) -> None:
        self.pid = os.getpid()
        self.pool_size = config.pool_size
        self.connect_timeout_s = config.connect_timeout_ms / 1000
        self.by_address: dict[str, HTTPConnectionPool] = {}
        #: Of each address that small calls went to: its host, and the connections that no call uses now.
        self.short: dict[str, tuple[str, int, list[SmallCallConnection]]] = {}
        self.is_cut = False
        #: `sent` is whether the call of this thread has given any byte of its request to a connection.
        self.call = threading.local()
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    def pool(self, address: str) -> HTTPConnectionPool:
        found = self.by_address.get(address)
        if found is None:
            found = self.by_address.setdefault(address, self._made(address))
        return found

    def _made(self, address: str) -> HTTPConnectionPool:
        try:
            url = urllib3.util.parse_url(address)
        except LocationValueError as error:
            raise InvalidConfiguration("address", address, f"not a URL: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or url.auth or url.path not in (None, "/"):
            raise InvalidConfiguration(
                "address", url._replace(auth=None).url, "not the base URL of a server", hint=_ADDRESS_HINT
            )
        secure = url.scheme == "https"
        base: type[HTTPConnection] = HTTPSConnection if secure else HTTPConnection
        connection = type("_Connection", (_Tracked, base), {"pools": self})
        pool_class = HTTPSConnectionPool if secure else HTTPConnectionPool
        pool = pool_class(url.host, url.port, maxsize=self.pool_size, retries=False)
        pool.ConnectionCls = connection
        return pool

    def opened(self, connection: Any) -> None:
        with self._lock:
            self._connections.add(connection)

    def cut(self) -> None:
        """End every connection, also those a thread is waiting on."""
        self.is_cut = True
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            sock = connection.sock
            if sock is not None:
                _shut(sock)
        for pool in list(self.by_address.values()):
            pool.close()
        for _, _, idle in list(self.short.values()):
            while idle:
                idle.pop().close()

    # --- connections for small calls ---------------------------------------------

    def small_call_connection(self, address: str, timeout_s: float) -> SmallCallConnection:
        """Return an idle connection, or make one within `timeout_s`."""
        host, port, idle = self.short.get(address) or self._short_host(address)
        while idle:
            connection = idle.pop()
            if connection.is_idle():
                return connection
            connection.close()
        made = SmallCallConnection(host, port, min(timeout_s, self.connect_timeout_s))
        self.opened(made)
        return made

    def keep_short(self, address: str, connection: SmallCallConnection) -> None:
        """Keep a connection for another call, if it may have one and there are not enough already."""
        idle = self.short[address][2]
        if connection.is_open and len(idle) < self.pool_size:
            idle.append(connection)
            if not self.is_cut:
                return
            # `cut` may have looked at the idle connections before this one was among them.
        connection.close()

    def _short_host(self, address: str) -> tuple[str, int, list[SmallCallConnection]]:
        pool = self.pool(address)
        found: tuple[str, int, list[SmallCallConnection]] = (pool.host.strip("[]"), pool.port or 80, [])
        return self.short.setdefault(address, found)


def _shut(sock: Any) -> None:
    """Wake a thread that waits on this socket: closing alone would not."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It was not connected any more, which is what is wanted.
        return
