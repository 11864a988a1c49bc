"""Time as a thing that is handed in, so that no test has to wait for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol

#: Linux's CLOCK_MONOTONIC stands still while the machine sleeps and CLOCK_BOOTTIME does not. Elsewhere
#: (macOS, FreeBSD) CLOCK_MONOTONIC counts sleep, too.
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Wall time stamps messages; monotonic time measures waits and leases; boot time reveals wall steps."""

    def now_us(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def boottime_ms(self) -> int:
        """Return the time since the machine started, time asleep included, which nobody can set."""
        ...

    def boot_id(self) -> str:
        """Return what names this start of the machine; empty where the system has no such name."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def boottime_ms(self) -> int:
        if _BOOTTIME is None:
            return self.monotonic_ms()
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text("ascii").strip()
        except OSError:
            return ""


class ManualClock:
    """A clock that stands still until `advance`; all times move together, but for `step` and `reboot`."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        #: Wall time (µs) and monotonic time (ms): one value, since other threads look while time passes.
        self._times = (now_us, now_us // 1000)
        self._booted_ms = 0
        self._boots = 1

    def now_us(self) -> int:
        return self._times[0]

    def monotonic_ms(self) -> int:
        return self._times[1]

    def boottime_ms(self) -> int:
        return self._times[1] - self._booted_ms

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("time does not run backwards")
        now_us, monotonic_ms = self._times
        self._times = (now_us + ms * 1000, monotonic_ms + ms)

    def step(self, ms: int) -> None:
        """Set the wall clock forward, or back, while no time passes."""
        now_us, monotonic_ms = self._times
        self._times = (now_us + ms * 1000, monotonic_ms)

    def reboot(self, off_ms: int = 0) -> None:
        """Start the machine anew after it was off for a while; nothing may run meanwhile."""
        self.advance(off_ms)
        self._booted_ms = self._times[1]
        self._boots += 1
