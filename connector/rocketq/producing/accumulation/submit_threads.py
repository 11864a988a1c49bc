"""The threads behind `Producer.submit`: a few that wait for due batches and send them.

One idle thread at a time is the *watcher*: it waits until a batch is due by its age. When it takes a batch,
it wakes another idle thread, which becomes the watcher. So a batch goes from the caller's thread to the
thread that sends it, and nowhere else.

`submit` blocks while the buffer is full; it never drops. `flush` returns when every message submitted before
it has its outcome, whatever is submitted meanwhile. `close` flushes, then ends the threads. Every future gets
its result or its exception, also when sending fails in an unforeseen way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.clock import Clock
from rocketq.config import ProducerConfig
from rocketq.errors import Closed, RocketqError, SendFailed, TooLarge
from rocketq.model import SendResult
from rocketq.producing.accumulation.accumulator import (
    MESSAGE_OVERHEAD_BYTES,
    NO_FIELDS,
    Accumulator,
    Batch,
    Destination,
    Fields,
)
from rocketq.producing.accumulation.message_columns import fields_size
from rocketq.producing.accumulation.send_future import SendFuture
from rocketq.producing.attempts.send_trace import SendTrace
from rocketq.producing.unique_ids import UNIQUE_IDS
from rocketq.protocol.column_values import numbers

log = logging.getLogger("rocketq.producing.producer")

Rows = npt.NDArray[np.int64]
#: Sends messages, with their ordering keys if they belong to a queue; gives, for each part that is stored,
#: which of the rows it has and where it is.
SendBatch = Callable[[Destination, pa.RecordBatch, list[bytes | None]], Iterable[tuple[Rows, SendResult]]]


class Pipeline:
    """Accumulates and sends in the background. Thread-safe."""

    def __init__(self, send: SendBatch, config: ProducerConfig, clock: Clock) -> None:
        self._send, self._config, self._clock = send, config, clock
        self._accumulator = Accumulator(
            linger_ms=config.linger_ms,
            batch_bytes=config.batch_bytes,
            batch_messages=config.batch_messages,
        )
        self._lock = threading.Lock()
        #: What the watcher waits for, what the other idle threads wait for, and what callers wait for.
        self._watch = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._is_watched = False
        #: Batches whose futures do not all have their outcome.
        self._outstanding: set[Batch] = set()
        self._closed = False
        #: Chooses messages to be recorded: on the thread that sends them, so that callers pay nothing for it.
        self.trace: SendTrace | None = None
        self._threads = [
            threading.Thread(target=self._serve, name=f"rocketq-send-{number}", daemon=True)
            for number in range(config.sender_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, destination: Destination, body: bytes, fields: Fields = NO_FIELDS, order: bytes | None = None
    ) -> SendFuture:
        """Take a message; block while the buffer is full, at most the producer's timeout.

        Raises SendFailed if it stays full, TooLarge if the message could never fit, Closed.
        """
        size = len(body) + MESSAGE_OVERHEAD_BYTES
        if fields is not NO_FIELDS:
            size += fields_size(*fields)
        clock, accumulator = self._clock, self._accumulator
        with self._lock:
            if self._closed or accumulator.buffered_bytes + size > self._config.buffer_bytes:
                self._wait_for_room(destination.topic, size)
            batch, row, is_news = accumulator.add(
                destination, body, fields, order, clock.now_us(), clock.monotonic_ms
            )
            if is_news:
                self._tell(batch, row)
        return SendFuture(batch.outcome, row)

    def flush(self) -> None:
        """Send everything now; return when all that was submitted has its outcome."""
        with self._lock:
            self._accumulator.hurry()
            waited_for = set(self._outstanding)
            self._wake_one()
            self._settled.wait_for(lambda: self._outstanding.isdisjoint(waited_for))

    def close(self) -> None:
        """Refuse further messages, send those that wait, and end the threads."""
        with self._lock:
            self._closed = True
            self._announce_room()
        self.flush()
        with self._lock:
            self._watch.notify_all()
            self._idle.notify_all()
        for thread in self._threads:
            thread.join()

    # --- the caller's thread -----------------------------------------------------

    def _wait_for_room(self, topic: str, size: int) -> None:
        limit = self._config.buffer_bytes
        timeout_ms = self._config.timeout_ms

        def has_room() -> bool:
            return self._closed or self._accumulator.buffered_bytes + size <= limit

        if size > limit:
            raise TooLarge("a message", size, limit)
        if not has_room() and not self._room.wait_for(has_room, timeout_ms / 1000):
            why = f"the send buffer of {limit} bytes stayed full"
            raise SendFailed(topic, [why], timeout_ms, may_be_stored=False)
        if self._closed:
            raise Closed("The producer")

    def _announce_room(self) -> None:
        """Have callers look whether there is room now, or whether it has become useless to wait."""
        self._room.notify_all()

    def _tell(self, batch: Batch, row: int) -> None:
        """Have a thread look at a batch that is new or due."""
        if row == 0:
            self._enter(batch)
        self._wake_one()

    def _enter(self, batch: Batch) -> None:
        self._outstanding.add(batch)
        batch.outcome.on_cancel = partial(self._cancel, batch)

    def _wake_one(self) -> None:
        (self._watch if self._is_watched else self._idle).notify()

    def _cancel(self, batch: Batch, row: int) -> bool:
        with self._lock:
            taken_out = self._accumulator.take_out(batch, row, CancelledError())
            self._announce_room()
        return taken_out

    # --- the sending threads -----------------------------------------------------

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            self._deliver(batch)

    def _next(self) -> Batch | None:
        """Wait for a batch that is due and take it; None when the pipeline is closed and empty."""
        with self._lock:
            while True:
                now_ms = self._clock.monotonic_ms()
                batch = self._accumulator.due(now_ms)
                if batch is not None:
                    # Another thread waits for the next one, which may be due already.
                    self._wake_one()
                    return batch
                if self._closed and self._accumulator.is_empty:
                    return None
                if self._is_watched:
                    self._idle.wait()
                    continue
                self._is_watched = True
                due_ms = self._accumulator.next_due_ms()
                self._watch.wait(None if due_ms is None else max(0, due_ms - now_ms) / 1000)
                self._is_watched = False

    def _deliver(self, batch: Batch) -> None:
        """Send one batch and complete its futures."""
        rows = batch.live_rows()
        count = len(batch)
        error: BaseException | None = None
        parts: list[tuple[Rows, SendResult]] = []
        try:
            if self.trace is not None:
                given = batch.columns.properties
                batch.columns.put_properties(self.trace.marked_rows(batch.destination.topic, given, count))
            for places, result in self._sent(batch, rows):
                parts.append((places if rows is None else np.array(rows, np.int64)[places], result))
        except RocketqError as raised:
            error = raised
        except BaseException as raised:
            # A defect of ours, or a selector's: whatever it is, the futures must learn of it.
            log.exception("Sending a batch to %s failed in an unforeseen way", batch.destination.topic)
            error = raised
        failed = _failed_rows(rows, count, parts)
        if failed and error is None:
            error = RuntimeError(f"{len(failed)} messages to {batch.destination.topic} have no result")
        with self._lock:
            self._accumulator.done(batch, failed, error)
            batch.outcome.settle(count, parts, error)
            self._announce_room()
            if batch.destination.queue is not None:
                # What waited behind it may be due, and this thread makes callbacks first.
                self._wake_one()
        batch.outcome.call_back()
        with self._lock:
            self._outstanding.discard(batch)
            self._settled.notify_all()

    def _sent(self, batch: Batch, rows: list[int] | None) -> Iterable[tuple[Rows, SendResult]]:
        if rows is not None and not rows:
            return ()
        if self._config.unique_ids:
            batch.outcome.ids = UNIQUE_IDS.many(len(batch))
            batch.outcome.own_ids = batch.columns.own_ids()
        made = batch.columns.to_batch(batch.outcome.ids)
        if rows is None:
            return self._send(batch.destination, made, batch.orders)
        orders = [batch.orders[row] for row in rows] if batch.orders else []
        return self._send(batch.destination, made.take(numbers(np.array(rows, np.int64))), orders)


def _failed_rows(rows: list[int] | None, count: int, parts: list[tuple[Rows, SendResult]]) -> list[int]:
    """Return which of the rows that were to be sent are in no part."""
    is_failed = np.ones(count, np.bool_)
    if rows is not None:
        is_failed[:] = False
        is_failed[rows] = True
    for places, _ in parts:
        is_failed[places] = False
    failed: list[int] = np.flatnonzero(is_failed).tolist()
    return failed
