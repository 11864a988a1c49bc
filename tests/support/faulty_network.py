"""A network between the processes of one machine whose ways can be cut, in one direction or in both.

Each line is a TCP proxy before one server. It tells who calls: a line may belong to one caller, and otherwise
a fetch names its replica, and everybody else is a client. A *way* leads from one node to another, (from, to):
the request of a call takes the one, its answer the other.

What is under way on a way that is cut is held, as a network holds what it repeats: when the way is healed, it
arrives late, or its connection ends. New connections can be made while a way is cut, and are silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Self
from urllib.parse import urlsplit

from rocketq.protocol.documents.replication import FETCH_PATH

#: From whom packets come, and to whom.
Way = tuple[str, str]

CLIENT: Final = "client"
_RECEIVE_BYTES: Final = 64 * 1024
_FETCH: Final = re.compile(rb"GET " + FETCH_PATH.encode() + rb"\?\S*\bnumber=(\d+)")
_CALL: Final = re.compile(rb"(GET|PUT|POST|DELETE) ")


class FaultyNetwork:
    """Lines and what is cut; a context manager. Its methods are called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._cut: frozenset[Way] = frozenset()
        self._changed = asyncio.Condition()
        self._is_late = True
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def line(self, server: str, address: Callable[[], str], group: str = "", caller: str = "") -> str:
        """Open a line to a server, whose address is asked for at each connection; return where it begins.

        Without a caller, it is found in each call: a replica of `group`, or a client.
        """

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(_Line(server, group, caller or CLIENT), address(), reader, writer)
            finally:
                self._tasks.discard(task)

        listener = self._run(asyncio.start_server(serve, "127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    def cut(self, ways: Iterable[Way]) -> None:
        """Let nothing pass on these ways, and on those that are cut already."""
        self._run(self._set(self._cut | set(ways)))

    def heal(self, *, is_late: bool) -> None:
        """Let everything pass again. What was held arrives late, or is lost with its connection."""
        self._is_late = is_late
        self._run(self._set(frozenset()))

    # --- the thread of the network --------------------------------------------------------------

    async def _set(self, cut: frozenset[Way]) -> None:
        async with self._changed:
            self._cut = cut
            self._changed.notify_all()

    async def _serve(
        self, line: _Line, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        to = urlsplit(address)
        try:
            answers, requests = await asyncio.open_connection(to.hostname, to.port)
        except OSError:
            writer.transport.abort()
            return
        ways = (self._pump(reader, requests, line.request), self._pump(answers, writer, line.answer))
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(*ways)
        finally:
            for each in (writer, requests):
                each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Callable[[bytes], Way]
    ) -> None:
        """Forward one direction of a connection until it ends; then the other one ends, too."""
        while data := await reader.read(_RECEIVE_BYTES):
            await self._pass(way(data))
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one side has closed the connection")

    async def _pass(self, way: Way) -> None:
        """Wait while a way is cut; raise if what was held is lost."""
        if way not in self._cut:
            return
        async with self._changed:
            await self._changed.wait_for(lambda: way not in self._cut)
        if not self._is_late:
            raise ConnectionResetError("the way was cut")

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Line:
    """One connection: between whom its packets go."""

    def __init__(self, server: str, group: str, caller: str) -> None:
        self._server = server
        self._group = group
        self._caller = caller

    def request(self, data: bytes) -> Way:
        if self._group and _CALL.match(data):
            fetch = _FETCH.match(data)
            self._caller = f"{self._group}.{fetch[1].decode()}" if fetch else CLIENT
        return self._caller, self._server

    def answer(self, _: bytes) -> Way:
        return self._server, self._caller


def ways_between(one: str, others: Iterable[str], direction: str) -> list[Way]:
    """Return the ways between a node and others: "out" of the node, "in" to it, or "both"."""
    out = [(one, other) for other in others]
    back = [(after, before) for before, after in out]
    return {"out": out, "in": back, "both": out + back}[direction]
