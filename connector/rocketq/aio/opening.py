"""What is opened before it can be used: `async with` opens it and closes it, `await` opens it alone.

    async with mq.consumer("web", ["orders"]) as consumer: ...
    consumer = await mq.consumer("web", ["orders"])         # the client closes it, or you do

So an object that exists is open: no method has to ask whether it was begun.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from rocketq.errors import InvalidConfiguration


class Closing(Protocol):
    """What `async with` can be left with."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


T = TypeVar("T", bound=Closing)


class Opening(Generic[T]):
    """Something to be opened once. `what` names it in errors."""

    def __init__(self, what: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._what, self._begin = what, begin
        self._is_begun = False
        self._opened: T | None = None

    def __repr__(self) -> str:
        return f"<{self._what}, {'opened' if self._is_begun else 'not opened yet'}>"

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)

    async def _open(self) -> T:
        if self._is_begun:
            raise InvalidConfiguration(
                "open",
                self._what,
                "it was opened before",
                hint="Make a new one for each `async with` or `await`.",
            )
        self._is_begun = True
        return await self._begin()

    def __del__(self) -> None:
        if not self._is_begun:
            message = f"{self._what} was never opened; use it in `async with`, or `await` it"
            warnings.warn(message, RuntimeWarning, stacklevel=2, source=self)
