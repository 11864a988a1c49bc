"""Time as a thing that is handed in, so that no test has to wait for it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time stamps messages; monotonic time measures waits and leases."""

    def now_us(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until `advance`; both times move together."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def monotonic_ms(self) -> int:
        return self._now_us // 1000

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("time does not run backwards")
        self._now_us += ms * 1000
