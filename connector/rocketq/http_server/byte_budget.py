"""Bounds the bytes that a server holds for its callers.

Code that is going to hold bytes first claims them of a `ByteBudget`, and releases them afterwards. A claim
that finds no room is refused with SYSTEM_BUSY. No claim waits here.

A claim may be given a `mark` below the limit. It then has room only up to the mark, so that what lies between
the mark and the limit is kept for claims without one. Everything is called on one thread.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rocketq.errors import SystemBusy


class ByteBudget:
    """How many bytes are held now, and how many may be."""

    def __init__(self, what: str, bytes_max: int, retry_after_ms: int) -> None:
        self.what = what
        self.bytes_max = bytes_max
        self.used = 0
        self._retry_after_ms = retry_after_ms

    def has_room(self, size: int, mark: int | None = None) -> bool:
        """Whether `size` more bytes may be held."""
        return self.used + size <= (self.bytes_max if mark is None else mark)

    def take(self, size: int, mark: int | None = None) -> None:
        """Hold `size` more bytes, to be released; raise SystemBusy if there is no room."""
        if not self.has_room(size, mark):
            raise self.busy()
        self.used += size

    def release(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.used -= size

    def busy(self) -> SystemBusy:
        """Return the refusal of a claim."""
        why = f"it holds {self.used} of at most {self.bytes_max} bytes of {self.what}"
        return SystemBusy(why, self._retry_after_ms)


class Claim:
    """The part of a budget that one call holds. It may grow, and is released when the `with` block ends."""

    __slots__ = ("_budget", "_mark", "size")

    def __init__(self, budget: ByteBudget, mark: int | None = None) -> None:
        self._budget = budget
        self._mark = mark
        self.size = 0

    def grow(self, size: int) -> None:
        """Hold `size` bytes more; raise SystemBusy."""
        self._budget.take(size, self._mark)
        self.size += size

    def release(self) -> None:
        """Give everything back."""
        size, self.size = self.size, 0
        self._budget.release(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
