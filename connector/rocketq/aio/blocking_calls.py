"""Calls that wait for a server, made by threads so that the event loop does not wait.

Only what makes a call for each call of its caller comes here: creating a topic, joining a group, a commit.
Messages do not: they are submitted and handed out on the loop itself.

A call whose task is cancelled before a thread has begun it is not made. One that has begun goes on to its
end, and its answer is dropped; what it made is undone, if `undo` says how.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from itertools import islice
from typing import Any, Final, Generic, ParamSpec, TypeVar

from rocketq.aio.home_loop import HomeLoop
from rocketq.errors import Closed

log = logging.getLogger("rocketq.aio.blocking_calls")

P = ParamSpec("P")
T = TypeVar("T")

#: Calls of one client that are made at the same time; threads are started when they are needed.
THREADS_MAX: Final = 16
#: What an iterator of the client for threads gives in one call.
PAGE_ITEMS: Final = 256


class BlockingCalls:
    """The threads of one client. Belongs to its loop."""

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="rocketq-aio")
        #: Calls that threads make, or will.
        self.running: set[Future[Any]] = set()
        self._is_closed = False

    async def run(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Return what `call()` returns on a thread, or raise what it raises.

        If the task is cancelled meanwhile, `undo` is called with what `call` returns, on a thread as well.
        """
        self._home.check()
        attempt = _Attempt(call, undo)
        future = self._begun(attempt)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            left = attempt.abandon()
            if left is not None:
                self._begun(left)
            raise

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def twin(self, function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return the coroutine function that does what a function does."""

        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.run(partial(function, *args, **kwargs))

        return call

    def twin_iterator(self, function: Callable[P, Iterator[T]]) -> Callable[P, AsyncIterator[T]]:
        """Return the function that gives an asynchronous iterator over what a function's iterator gives."""

        @wraps(function)
        async def items(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
            found = await self.run(partial(function, *args, **kwargs))
            while page := await self.run(partial(_next_items, found)):
                for item in page:
                    yield item

        return items

    async def close(self) -> None:
        """Wait for the calls that are being made, and end the threads."""
        running = [asyncio.wrap_future(future) for future in self.running]
        if running:
            await asyncio.wait(running)
        self.abandon()

    def abandon(self) -> None:
        """Have the threads end after the calls that they are making."""
        self._is_closed = True
        self._pool.shutdown(wait=False)

    def _begun(self, call: Callable[[], T]) -> Future[T]:
        try:
            future = self._pool.submit(call)
        except RuntimeError:
            raise Closed("The client") from None
        self.running.add(future)
        future.add_done_callback(self.running.discard)
        return future


class _Attempt(Generic[T]):
    """A call, and what is to be done with its answer when nobody waits for it any more."""

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None) -> None:
        self._call, self._undo = call, undo
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._made: tuple[T] | None = None

    def __call__(self) -> T:
        made = self._call()
        with self._lock:
            self._made = (made,)
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self._undone(made)
        return made

    def abandon(self) -> Callable[[], None] | None:
        """Say that nobody waits any more; return what is left to do if the call has returned already."""
        with self._lock:
            self._is_abandoned = True
            made = self._made
        return None if made is None or self._undo is None else partial(self._undone, *made)

    def _undone(self, made: T) -> None:
        if self._undo is None:
            return
        try:
            self._undo(made)
        except Exception:
            # Its caller was cancelled, so nobody else can tell.
            log.exception("What a cancelled call had made could not be undone")


def _next_items(found: Iterator[T]) -> list[T]:
    return list(islice(found, PAGE_ITEMS))
