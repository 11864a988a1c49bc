"""The clock of message leases: it never goes back, and nobody can set it.

A lease that is given for 30 seconds is to last for 30 seconds, also if the wall clock is set meanwhile. So
while the broker runs, its leases are timed by the machine's count since it started. A start of the broker
takes up the wall clock, or the newest time of a lease in the log if that is later:

    the wall clock steps while the broker runs      leases do not notice
    the broker is restarted                         leases ran on while it was away
    the wall clock was set back meanwhile           leases last longer by the time that the broker was away
    the wall clock was set forward meanwhile        leases run out early: messages come twice, none is lost
"""

from __future__ import annotations

from rocketq.clock import Clock


class LeaseClock:
    """Milliseconds that begin as those since 1970."""

    def __init__(self, clock: Clock, newest_ms: int) -> None:
        """`newest_ms` is the newest time of a lease in the log, 0 if there is none."""
        self._clock = clock
        self._ahead_ms = max(clock.now_us() // 1000, newest_ms) - clock.boottime_ms()

    def now_ms(self) -> int:
        return self._ahead_ms + self._clock.boottime_ms()
