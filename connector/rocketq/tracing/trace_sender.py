"""Sending trace records in the background: bounded, and never in the way of what is traced.

Whoever records something hands over what to make records of, and how many they will be; the records are made
on the thread `rocketq-trace`, which gathers them for `linger_ms` and sends them as batches. A record that
finds the buffer full, or cannot be sent, is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rocketq.clock import Clock
from rocketq.config import TraceConfig
from rocketq.errors import RocketqError
from rocketq.producing.producer import Producer
from rocketq.protocol.rules.reserved_names import TRACE_TOPIC
from rocketq.tracing.records import TraceRecord, record_batch

log = logging.getLogger("rocketq.tracing")

#: Makes the records of one thing that happened.
Making = Callable[[], Iterable[TraceRecord]]


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """What became of the records of a client: stored in the trace topic, or dropped."""

    stored: int
    dropped: int


class TraceSender:
    """Takes records and sends them. Thread-safe; the thread begins with the first record."""

    def __init__(self, producer: Producer, config: TraceConfig, clock: Clock) -> None:
        """It owns the producer."""
        self._producer, self._config, self._clock = producer, config, clock
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Making]] = deque()
        self._waiting_records = 0
        self._since_ms = 0
        #: How many records were taken, and how many of them have their outcome.
        self._taken = self._settled = 0
        self._stored = self._dropped = 0
        #: Up to here a caller waits for the outcome.
        self._hurry_to = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._logged: str | None = None

    def add(self, count: int, making: Making) -> None:
        """Take what makes `count` records; drop them if they do not fit."""
        with self._changed:
            if self._closing or self._waiting_records + count > self._config.buffer_records:
                self._dropped += count
                return
            if not self._waiting:
                self._since_ms = self._clock.monotonic_ms()
            self._waiting.append((count, making))
            self._waiting_records += count
            self._taken += count
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rocketq-trace", daemon=True)
                self._thread.start()
            elif len(self._waiting) == 1 or self._waiting_records >= self._config.batch_records:
                self._changed.notify_all()

    @property
    def room(self) -> int:
        """How many more records fit now."""
        return max(0, self._config.buffer_records - self._waiting_records)

    def drop(self, count: int) -> None:
        """Count records that were not even made."""
        with self._changed:
            self._dropped += count

    def counts(self) -> TraceCounts:
        with self._changed:
            return TraceCounts(self._stored, self._dropped)

    def flush(self, timeout_ms: int | None = None) -> bool:
        """Send what waits now; return whether all of it has its outcome, False after `timeout_ms`."""
        with self._changed:
            wanted = self._hurry_to = self._taken
            self._changed.notify_all()
            seconds = None if timeout_ms is None else timeout_ms / 1000
            return self._changed.wait_for(lambda: self._settled >= wanted, seconds)

    def close(self) -> None:
        """Send what waits, for at most the timeout of the configuration, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._config.timeout_ms / 1000)
        with self._changed:
            self._dropped += self._waiting_records
            self._waiting.clear()
            self._waiting_records = 0
        self._producer.close()

    # --- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        while taken := self._next():
            self._send([record for _, making in taken for record in making()], sum(n for n, _ in taken))

    def _next(self) -> list[tuple[int, Making]]:
        """Wait until records are due and take a batch of them; nothing when all is sent and it closes."""
        with self._changed:
            while not self._is_due():
                if self._closing:
                    return []
                self._changed.wait(self._due_in_s())
            taken = [self._waiting.popleft()]
            size = taken[0][0]
            while self._waiting and size + self._waiting[0][0] <= self._config.batch_records:
                taken.append(self._waiting.popleft())
                size += taken[-1][0]
            self._waiting_records -= size
            return taken

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        hurried = self._closing or self._settled < self._hurry_to
        return hurried or self._waiting_records >= self._config.batch_records or self._due_in_s() == 0

    def _due_in_s(self) -> float | None:
        if not self._waiting:
            return None
        left_ms = self._since_ms + self._config.linger_ms - self._clock.monotonic_ms()
        return max(0, left_ms) / 1000

    def _send(self, records: list[TraceRecord], count: int) -> None:
        stored = 0
        try:
            self._producer.send_batch(TRACE_TOPIC, record_batch(records))
            stored = count
            self._logged = None
        except RocketqError as error:
            if error.code != self._logged:
                self._logged = error.code
                log.warning("Trace records are dropped, and counted: %s", error)
        except Exception:
            log.exception("%d trace records could not be made or sent", count)
        with self._changed:
            self._settled += count
            self._stored += stored
            self._dropped += count - stored
            self._since_ms = self._clock.monotonic_ms()
            self._changed.notify_all()
