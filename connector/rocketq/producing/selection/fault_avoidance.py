"""Which brokers to avoid for a while, judged by how fast they answered.

RocketMQ's latency tables (`MQFaultStrategy`, `LatencyFaultToleranceImpl`, 5.x):
the slower a broker answers, the longer it is not chosen. A failure counts as
an answer of 10 s, and makes the broker unreachable until it answers again. A later
answer can make the time of avoidance longer and never shorter
(`FaultItem.updateNotAvailableDuration`): one quick answer does not prove that a slow
broker has recovered. An unknown broker is available. When every broker is avoided, `preferred`
returns those that are reachable, or all.

Pure: times come in as `now_ms` of any monotonic clock. Threads may share one without a lock:
a quick answer does not write the time of avoidance at all, and of two slow answers at the
same moment one of the two times stays.
"""

from __future__ import annotations

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


def unavailable_ms(latency_ms: int) -> int:
    """Return how long a broker that answered after `latency_ms` is avoided."""
    return max((pause for least, pause in LATENCY_TABLE if latency_ms >= least), default=0)


@dataclass(frozen=True, slots=True)
class BrokerFault:
    """How a broker is treated that was slow or failed.

    `avoided_ms` is how long it gets no messages without an order, from now on. `is_reachable` is whether it
    has answered since its last failure.
    """

    avoided_ms: int
    is_reachable: bool


class FaultTolerance:
    """What is remembered of how each broker answered."""

    def __init__(self) -> None:
        #: When the time of avoidance ends, of each broker that ever had one.
        self._available_from_ms: dict[str, int] = {}
        #: Brokers whose last call failed.
        self._unreachable: set[str] = set()

    def record(self, broker: str, latency_ms: int, now_ms: int, isolation: bool = False) -> None:
        """Note an answer that took `latency_ms`, or with `isolation` that there was none."""
        pause_ms = unavailable_ms(ISOLATION_LATENCY_MS if isolation else latency_ms)
        if pause_ms and now_ms + pause_ms > self._available_from_ms.get(broker, now_ms):
            self._available_from_ms[broker] = now_ms + pause_ms
        if isolation:
            self._unreachable.add(broker)
        else:
            self._unreachable.discard(broker)

    @property
    def is_untroubled(self) -> bool:
        """Whether no broker was ever slow or failed, so that all are equal."""
        return not self._available_from_ms and not self._unreachable

    def is_available(self, broker: str, now_ms: int) -> bool:
        """Whether the broker's time of avoidance is over."""
        return now_ms >= self._available_from_ms.get(broker, now_ms)

    def is_reachable(self, broker: str) -> bool:
        """Whether the broker's last call did not fail."""
        return broker not in self._unreachable

    def answered(self, broker: str) -> None:
        """Note that a broker answered a question of a kind that says nothing of its speed."""
        self._unreachable.discard(broker)

    def faults(self, now_ms: int) -> dict[str, BrokerFault]:
        """Return the brokers that are avoided or not reachable now."""
        troubled = {*self._available_from_ms, *self._unreachable}
        found = {
            broker: BrokerFault(
                max(0, self._available_from_ms.get(broker, now_ms) - now_ms), self.is_reachable(broker)
            )
            for broker in sorted(troubled)
        }
        return {name: each for name, each in found.items() if each.avoided_ms or not each.is_reachable}

    def preferred(self, brokers: Sequence[str], now_ms: int) -> list[str]:
        """Return the available of `brokers`, else the reachable, else all."""
        available = [b for b in brokers if self.is_available(b, now_ms)]
        return available or [b for b in brokers if self.is_reachable(b)] or list(brokers)
