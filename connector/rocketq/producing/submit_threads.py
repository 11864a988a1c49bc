"""The threads behind `Producer.submit`: one that watches the accumulator, a few that send.

`submit` blocks while the buffer is full; it never drops. `flush` returns when
every message submitted before it has its outcome, whatever is submitted
meanwhile: messages are counted by *generation*, and a flush begins a new one.
`close` flushes, then ends the threads. Every future gets its result or its
exception, also when sending fails in an unforeseen way.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor

from rocketq.clock import Clock
from rocketq.config import ProducerConfig
from rocketq.errors import Closed, RocketqError, SendFailed, TooLarge
from rocketq.model import NO_OFFSET, Message, SendResult
from rocketq.producing.accumulator import Accumulator, Batch, Destination, Waiting, size_of

log = logging.getLogger("rocketq.producing.producer")

#: Sends the messages; gives, for each part that is stored, which of the messages it has and where it is.
SendBatch = Callable[[Destination, Sequence[Waiting]], Iterable[tuple[Iterable[int], SendResult]]]


class Pipeline:
    """Accumulates and sends in the background. Thread-safe."""

    def __init__(self, send: SendBatch, config: ProducerConfig, clock: Clock) -> None:
        self._send, self._config, self._clock = send, config, clock
        self._accumulator = Accumulator(
            linger_ms=config.linger_ms,
            batch_bytes=config.batch_bytes,
            batch_messages=config.batch_messages,
        )
        self._changed = threading.Condition()
        self._flushing = 0
        self._generation = 0
        self._outstanding: Counter[int] = Counter()
        self._closed = False
        self._senders = ThreadPoolExecutor(config.sender_threads, thread_name_prefix="rocketq-send")
        self._watcher = threading.Thread(target=self._watch, name="rocketq-linger", daemon=True)
        self._watcher.start()

    def submit(self, destination: Destination, message: Message, order: bytes | None) -> Future[SendResult]:
        """Take a message; block while the buffer is full, at most the producer's timeout.

        Raises SendFailed if it stays full, TooLarge if the message could never fit, Closed.
        """
        size = size_of(message)
        if size > self._config.buffer_bytes:
            raise TooLarge("a message", size, self._config.buffer_bytes)
        with self._changed:
            self._wait_for_room(destination.topic, size)
            waiting = Waiting(message, Future(), size, order, self._generation)
            self._outstanding[self._generation] += 1
            if self._accumulator.add(destination, waiting, self._clock.monotonic_ms()):
                self._changed.notify_all()
        return waiting.future

    def flush(self) -> None:
        """Send everything now; return when all that was submitted has its outcome."""
        with self._changed:
            ending = self._generation
            self._generation += 1
            self._flushing += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: all(g > ending for g in self._outstanding))
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Refuse further messages, send those that wait, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.flush()
        self._watcher.join()
        self._senders.shutdown()

    # --- inside ------------------------------------------------------------------

    def _wait_for_room(self, topic: str, size: int) -> None:
        limit = self._config.buffer_bytes
        timeout_ms = self._config.timeout_ms

        def has_room() -> bool:
            return self._closed or self._accumulator.buffered_bytes + size <= limit

        if not has_room() and not self._changed.wait_for(has_room, timeout_ms / 1000):
            why = f"the send buffer of {limit} bytes stayed full"
            raise SendFailed(topic, [why], timeout_ms, may_be_stored=False)
        if self._closed:
            raise Closed("The producer")

    def _watch(self) -> None:
        """Hand due batches to the senders; end when closed and empty."""
        while True:
            with self._changed:
                batches = self._accumulator.due(
                    self._clock.monotonic_ms(), flushing=bool(self._flushing) or self._closed
                )
                if not batches:
                    if self._closed and self._accumulator.is_empty:
                        return
                    self._changed.wait(self._wait_s())
                    continue
            for batch in batches:
                self._senders.submit(self._deliver, batch)

    def _wait_s(self) -> float | None:
        due_ms = self._accumulator.next_due_ms()
        return None if due_ms is None else max(0, due_ms - self._clock.monotonic_ms()) / 1000

    def _deliver(self, batch: Batch) -> None:
        """Send one batch and settle its futures; a message that was cancelled in time is left out."""
        wanted = [w for w in batch.messages if w.future.set_running_or_notify_cancel()]
        error: BaseException | None = None
        stored: dict[int, SendResult] = {}
        try:
            for rows, result in self._send(batch.destination, wanted) if wanted else ():
                for index, row in enumerate(rows):
                    stored[int(row)] = _of_message(result, index)
        except RocketqError as raised:
            error = raised
        except BaseException as raised:
            # A defect of ours, or a selector's: whatever it is, the futures must learn of it.
            log.exception("Sending a batch to %s failed in an unforeseen way", batch.destination.topic)
            error = raised
        failed = [waiting for row, waiting in enumerate(wanted) if row not in stored]
        with self._changed:
            doomed = self._accumulator.done(batch, failed)
            self._changed.notify_all()
        for row, result in stored.items():
            wanted[row].future.set_result(result)
        if error is not None:
            _fail([*failed, *(w for w in doomed if w.future.set_running_or_notify_cancel())], error)
        with self._changed:
            self._outstanding.subtract(w.generation for w in (*batch.messages, *doomed))
            self._outstanding = +self._outstanding
            self._changed.notify_all()


def _fail(messages: Sequence[Waiting], error: BaseException) -> None:
    for waiting in messages:
        try:
            waiting.future.set_exception(error)
        except InvalidStateError:
            log.warning("A future was settled by somebody else; its send failed: %s", error)


def _of_message(result: SendResult, index: int) -> SendResult:
    """Return what the result of a batch says of one of its messages."""
    if result.is_delayed:
        return SendResult(result.status, result.queue, NO_OFFSET, 1, result.timer_id)
    return SendResult(result.status, result.queue, result.offset + index, 1)
