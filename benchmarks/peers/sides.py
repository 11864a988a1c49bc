"""What the two sides of a comparison share: turns, cold and warm, and the processor time of all processes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.kit.instrument import say
from benchmarks.kit.spark_ceilings import descendants_cpu_seconds

#: A cold turn and a warm one.
TURNS_MIN: Final = 2
#: What a comparison may take, if nothing else is said.
MINUTES: Final = 8.0


@dataclass(slots=True)
class Side:
    """One system at one piece of work: `run` does all of it once."""

    name: str
    run: Callable[[], None]
    rates: list[float] = field(default_factory=list)
    #: Processor seconds a million messages, of this process and all that it started.
    costs: list[float] = field(default_factory=list)

    def turn(self, messages: int) -> None:
        used, started = _processor_seconds(), time.perf_counter()
        self.run()
        seconds = time.perf_counter() - started
        self.rates.append(messages / seconds)
        self.costs.append((_processor_seconds() - used) / messages * 1e6)

    @property
    def warm(self) -> float:
        """The median rate after the first turn."""
        return statistics.median(self.rates[1:] or self.rates)

    def document(self) -> dict[str, Any]:
        costs = statistics.median(self.costs[1:] or self.costs)
        return {"cold": self.rates[0], "warm": self.warm, "turns": self.rates, "processor_s_a_million": costs}


def _processor_seconds() -> float:
    own = os.times()
    return own.user + own.system + descendants_cpu_seconds()


class Allotment:
    """The time of a comparison, shared out among its works: what one leaves, the others have."""

    def __init__(self, minutes: float, works: int) -> None:
        self._ends_at = time.monotonic() + 60 * minutes
        self._works_left = works

    def next_ends_at(self) -> float:
        """Return when the turns of the next work are to end, as `time.monotonic` counts."""
        now = time.monotonic()
        share = max(0.0, self._ends_at - now) / max(1, self._works_left)
        self._works_left -= 1
        return now + share


def interleave(
    work: str, sides: Sequence[Side], messages: int, turns: int, allotment: Allotment
) -> dict[str, Any]:
    """Give the sides their turns in changing order; print and return what came of it.

    The first side is ours; `ratio` is its warm rate by each other side's. There are at least two turns,
    a cold and a warm one, and no more than there is time for.
    """
    ends_at, took = allotment.next_ends_at(), 0.0
    for turn in range(turns):
        began = time.monotonic()
        if turn >= TURNS_MIN and began + took > ends_at:
            turns = turn
            break
        for side in sides if turn % 2 == 0 else list(reversed(sides)):
            side.turn(messages)
        took = time.monotonic() - began
    say(f"-- {work}: {messages:,} messages a turn, {turns} turns, the first apart")
    for side in sides:
        told = side.document()
        say(
            f"{side.name:<44} {told['warm']:>12,.0f}/s  cold {told['cold']:>12,.0f}/s"
            f"  {told['processor_s_a_million']:.2f} processor s a million"
        )
    ratios = {side.name: round(sides[0].warm / side.warm, 3) for side in sides[1:]}
    for name, ratio in ratios.items():
        say(f"   {sides[0].name} is {ratio:.2f} times as fast as {name}")
    return {"sides": {side.name: side.document() for side in sides}, "ratios": ratios}
