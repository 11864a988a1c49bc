"""When runs of leased messages run out: a map from times to runs that is never changed (`queue_leases`).

Times are whole ticks. They lie in two levels of maps: periods of many ticks, and the ticks of a period. So
the first time is found by a look at a few hundred keys, also while leases of half a day are outstanding.
Adding and removing a run costs the same however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rpds import HashTrieMap, HashTrieSet

#: A lease ends at a multiple of this, so that leases of one moment end together.
TICK_MS: Final = 100
#: Ticks in a period: about a minute.
_PERIOD: Final = 512

#: The number of a lease, and the chunk of the queue in which a run of it lies.
RunKey: TypeAlias = "tuple[int, int]"
_Ticks: TypeAlias = "HashTrieMap[int, HashTrieSet[RunKey]]"

_NO_TICKS: Final[_Ticks] = HashTrieMap()
_NO_RUNS: Final[HashTrieSet[RunKey]] = HashTrieSet()


def end_of_lease(at_ms: int, invisible_ms: int) -> int:
    """Return when a lease that is given now runs out: at the first tick that is not too early.

    A lease of no time has run out already.
    """
    if not invisible_ms:
        return at_ms // TICK_MS * TICK_MS
    return -(-(at_ms + invisible_ms) // TICK_MS) * TICK_MS


@dataclass(frozen=True, slots=True)
class DueRuns:
    """Runs by the time at which they run out, in milliseconds; every time is a multiple of TICK_MS."""

    periods: HashTrieMap[int, _Ticks] = field(default_factory=HashTrieMap)

    def with_run(self, until_ms: int, key: RunKey) -> DueRuns:
        period, tick = _place(until_ms)
        ticks = self.periods.get(period, _NO_TICKS)
        runs = ticks.get(tick, _NO_RUNS).insert(key)
        return DueRuns(self.periods.insert(period, ticks.insert(tick, runs)))

    def without(self, until_ms: int, key: RunKey) -> DueRuns:
        period, tick = _place(until_ms)
        ticks = self.periods[period]
        runs = ticks[tick].remove(key)
        ticks = ticks.insert(tick, runs) if runs else ticks.remove(tick)
        return DueRuns(self.periods.insert(period, ticks) if ticks else self.periods.remove(period))

    @property
    def first_ms(self) -> int | None:
        """When the next run runs out; None if there is none."""
        period = min(self.periods, default=None)
        return None if period is None else min(self.periods[period]) * TICK_MS

    def next_ms(self, at_ms: int) -> int | None:
        """When the next run runs out after a time; if all have, when the last one did; None without a run."""
        period, tick = _place(at_ms)
        for later in sorted(each for each in self.periods if each >= period):
            ticks = [each for each in self.periods[later] if each > tick]
            if ticks:
                return min(ticks) * TICK_MS
        return None if not self.periods else max(self.periods[max(self.periods)]) * TICK_MS

    def out(self, at_ms: int) -> Iterator[RunKey]:
        """Yield the runs that have run out at a time, the longest ago first."""
        last_period, last = _place(at_ms)
        for period in sorted(each for each in self.periods if each <= last_period):
            ticks = self.periods[period]
            for tick in sorted(each for each in ticks if each <= last):
                yield from sorted(ticks[tick])


def _place(at_ms: int) -> tuple[int, int]:
    tick = at_ms // TICK_MS
    return tick // _PERIOD, tick
