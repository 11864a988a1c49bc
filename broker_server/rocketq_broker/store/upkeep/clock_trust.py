"""Whether the wall clock may be believed when messages are deleted by age: pure decisions.

Age is the wall clock's time now less the time when a message was stored. A wall clock that is set ten days
forward would make every message ten days older at once, so what the wall clock says is held against the
machine's count of time since it started, which nobody can set (`rocketq.clock`). A `ClockRecord`
is a moment when the wall clock was believed, by both clocks, and it is kept on disk.

    the wall clock steps forward        doubt until an operator agrees, or the clock returns
    the wall clock steps back           no doubt: nothing is older than before; the record begins anew
    the machine was started anew, and   doubt for a day: the clock may be wrong, and consumers could not
    nobody saw more than a day pass     read meanwhile. Then the time counts
    the broker alone was restarted      the machine's count went on: no doubt, however long it took

A slow drift is no step: DRIFT_PPM is the most by which NTP slews a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

#: A step below this changes no age that matters.
STEP_US_MIN: Final = 60 * 1_000_000
DRIFT_PPM: Final = 500
DAY_US: Final = 24 * 3600 * 1_000_000
#: Time that nobody saw pass, above which it is doubted, and for how long.
OFF_US_MAX: Final = DAY_US
DOUBTED_OFF_US: Final = DAY_US


class Doubt(StrEnum):
    """Why nothing is deleted by age."""

    NONE = ""
    STEP = "step"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Reading:
    """All clocks at one moment: which start of the machine, µs since 1970, ms since that start."""

    boot: str
    wall_us: int
    boottime_ms: int


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """A moment when the wall clock was believed, and what is doubted since; the content of `state/clock`.

    `ahead_us` is how far the wall clock has stepped ahead, 0 if it has not; `wall_us + ahead_us` is then
    what it showed at `boottime_ms`. `seen_us` is when time was last seen to pass before the machine was
    off, and `believe_at_us` when the time off counts; 0 and 0 if that is not doubted.
    """

    boot: str
    wall_us: int
    boottime_ms: int
    ahead_us: int = 0
    seen_us: int = 0
    believe_at_us: int = 0

    @property
    def doubt(self) -> Doubt:
        if self.ahead_us:
            return Doubt.STEP
        return Doubt.OFF if self.believe_at_us else Doubt.NONE


def agree(now: Reading) -> ClockRecord:
    """Return the record of a moment when the wall clock is believed."""
    return ClockRecord(now.boot, now.wall_us, now.boottime_ms)


def resume(record: ClockRecord | None, now: Reading, newest_us: int) -> ClockRecord:
    """Return the record to start with.

    `record` is what the last life left, `newest_us` the newest store time, 0 for a store without a log.
    """
    if record is not None and record.boot and record.boot == now.boot:
        return observe(record, now)
    if record is not None and record.ahead_us:
        if now.wall_us < record.wall_us + record.ahead_us - STEP_US_MIN:
            # It was set back while the machine was off.
            return _after_off(now, record.wall_us)
        return replace(
            record, boot=now.boot, wall_us=now.wall_us - record.ahead_us, boottime_ms=now.boottime_ms
        )
    if record is not None and record.believe_at_us > now.wall_us:
        if now.wall_us < record.wall_us:
            return _after_off(now, record.seen_us)
        return replace(record, boot=now.boot, wall_us=now.wall_us, boottime_ms=now.boottime_ms)
    seen = [newest_us] if record is None else [newest_us, record.wall_us]
    # A store time in the future was stamped by a clock that was wrong; it says nothing.
    past = [each for each in seen if 0 < each <= now.wall_us]
    return _after_off(now, max(past, default=now.wall_us))


def _after_off(now: Reading, seen_us: int) -> ClockRecord:
    if now.wall_us - seen_us <= OFF_US_MAX:
        return agree(now)
    return replace(agree(now), seen_us=seen_us, believe_at_us=now.wall_us + DOUBTED_OFF_US)


def observe(record: ClockRecord, now: Reading) -> ClockRecord:
    """Return the record after a look at the clocks, in the same life of the machine."""
    elapsed_us = (now.boottime_ms - record.boottime_ms) * 1000
    ahead_us = now.wall_us - record.wall_us - elapsed_us
    allowed_us = STEP_US_MIN + max(0, elapsed_us) * DRIFT_PPM // 1_000_000
    if record.ahead_us:
        # However long it lasts, a step is not taken for drift: it is over when half of it is gone.
        allowed_us = min(allowed_us, record.ahead_us // 2)
    if ahead_us > allowed_us:
        if record.ahead_us:
            return record
        believed = replace(record, boot=now.boot, wall_us=now.wall_us - ahead_us, boottime_ms=now.boottime_ms)
        return replace(believed, ahead_us=ahead_us)
    if ahead_us < -allowed_us:
        return _after_off(now, record.seen_us) if record.believe_at_us else agree(now)
    if record.believe_at_us and now.wall_us >= record.believe_at_us:
        return agree(now)
    return replace(record, ahead_us=0) if record.ahead_us else record
