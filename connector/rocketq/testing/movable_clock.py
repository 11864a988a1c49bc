"""A clock that goes on as the machine's does, and that a test moves forward.

Two of its times move: wall time, by which messages are stamped, delayed, checked and removed, and the time
since the machine started, by which message leases run out. Monotonic time does not. By that one processes
wait for each other: heartbeats, sessions, long polls, time limits of calls. So an hour that a test skips
makes a message of that hour due, and throws no member out of its group and no broker off the route.
"""

from __future__ import annotations

from rocketq.clock import SystemClock


class MovableClock(SystemClock):
    """The machine's clock and an offset; any thread may look while `advance` moves it."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def advance(self, ms: int) -> None:
        """Move wall time and boot time forward; raise ValueError for a step back."""
        if ms < 0:
            raise ValueError(f"time does not run backwards, as it would by {ms} ms")
        self._ahead_ms += ms

    @property
    def ahead_ms(self) -> int:
        """How far this clock is before the machine's."""
        return self._ahead_ms

    def now_us(self) -> int:
        return super().now_us() + self._ahead_ms * 1000

    def boottime_ms(self) -> int:
        return super().boottime_ms() + self._ahead_ms
