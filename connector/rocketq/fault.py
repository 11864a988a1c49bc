"""Which brokers to leave alone for a while, judged by how they answered.

RocketMQ's latency tables (`MQFaultStrategy`, `LatencyFaultToleranceImpl`, 5.x):
the slower a broker's last answer, the longer it is not chosen; a failure
counts as an answer of 10 s and makes it unreachable until it answers again.
An unknown broker is available. Nothing here is forbidden for good: when every
broker is out of favour, `pick_one_at_least` still names one.

Pure: times come in as `now_ms` of any monotonic clock. Safe to share between
threads, since each record replaces one whole value.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: A latency of at least the first, in ms, makes a broker unavailable for the second.
LATENCY_TABLE: Final = (
    (50, 0),
    (100, 0),
    (550, 2_000),
    (1_800, 5_000),
    (3_000, 6_000),
    (5_000, 10_000),
    (15_000, 30_000),
)
#: What a failed call counts as.
ISOLATION_LATENCY_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Record:
    latency_ms: int
    available_from_ms: int
    reachable: bool


def unavailable_ms(latency_ms: int) -> int:
    """Return how long a broker that answered after `latency_ms` is avoided."""
    return max((pause for least, pause in LATENCY_TABLE if latency_ms >= least), default=0)


class FaultTolerance:
    """What is remembered of each broker's last answer."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._records: dict[str, _Record] = {}

    def record(self, broker: str, latency_ms: int, now_ms: int, isolation: bool = False) -> None:
        """Note an answer that took `latency_ms`, or with `isolation` that there was none."""
        counted_ms = ISOLATION_LATENCY_MS if isolation else latency_ms
        until_ms = now_ms + unavailable_ms(counted_ms)
        self._records[broker] = _Record(latency_ms, until_ms, reachable=not isolation)

    def is_available(self, broker: str, now_ms: int) -> bool:
        record = self._records.get(broker)
        return record is None or now_ms >= record.available_from_ms

    def is_reachable(self, broker: str) -> bool:
        record = self._records.get(broker)
        return record is None or record.reachable

    def forget(self, broker: str) -> None:
        self._records.pop(broker, None)

    def pick_one_at_least(self, brokers: Sequence[str], now_ms: int) -> str:
        """Return one of `brokers`: an available one, else a reachable one, else the first back in favour.

        Among equals it is random. `brokers` is not empty.
        """
        usable = [b for b in brokers if self.is_available(b, now_ms)]
        usable = usable or [b for b in brokers if self.is_reachable(b)]
        if usable:
            return self._rng.choice(usable)
        return min(brokers, key=lambda b: self._records[b].available_from_ms)

    def preferred(self, brokers: Sequence[str], now_ms: int) -> list[str]:
        """Return the available of `brokers`, else the reachable, else all."""
        available = [b for b in brokers if self.is_available(b, now_ms)]
        return available or [b for b in brokers if self.is_reachable(b)] or list(brokers)
