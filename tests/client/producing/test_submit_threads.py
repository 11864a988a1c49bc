"""The pipeline: bounded, never dropping, and every future completed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from rocketq.clock import SystemClock
from rocketq.config import ProducerConfig
from rocketq.errors import Closed, SendFailed, TooLarge
from rocketq.model import MessageQueue, SendResult, SendStatus
from rocketq.producing.accumulation.accumulator import MESSAGE_OVERHEAD_BYTES, Destination
from rocketq.producing.accumulation.send_future import SendFuture
from rocketq.producing.accumulation.submit_threads import Pipeline, Rows

FREE = Destination("t")
QUEUE = MessageQueue("t", "a", 0)
ORDERED = Destination("t", QUEUE)
Parts: TypeAlias = Iterator[tuple[Rows, SendResult]]


class Sink:
    """Where the pipeline sends; `gate` closed, sends wait."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.error: Exception | None = None
        self._lock = threading.Lock()
        self._offset = 0

    def __call__(
        self, destination: Destination, batch: pa.RecordBatch, orders: Sequence[bytes | None]
    ) -> Parts:
        self.entered.release()
        assert self.gate.wait(60)
        with self._lock:
            if self.error is not None:
                raise self.error
            offset = self._offset
            self._offset += batch.num_rows
            self.batches.append(batch.column("body").to_pylist())
        assert len(orders) == (0 if destination.queue is None else batch.num_rows)
        yield np.arange(batch.num_rows), SendResult(SendStatus.SEND_OK, QUEUE, offset, batch.num_rows)


@contextmanager
def running(sink: Sink, **settings: int) -> Iterator[Pipeline]:
    config = ProducerConfig(**settings)  # type: ignore[arg-type]
    pipeline = Pipeline(sink, config, SystemClock())
    try:
        yield pipeline
    finally:
        sink.gate.set()
        pipeline.close()


def test_each_future_gets_its_own_offset() -> None:
    sink = Sink()
    with running(sink, linger_ms=60_000) as pipeline:
        futures = [pipeline.submit(FREE, str(n).encode()) for n in range(5)]
        pipeline.flush()
        assert [f.result().offset for f in futures] == [0, 1, 2, 3, 4]
        assert sink.batches == [[b"0", b"1", b"2", b"3", b"4"]], "one batch, as nothing hurried it"


def test_a_lingering_message_is_sent_without_a_flush() -> None:
    with running(Sink(), linger_ms=1) as pipeline:
        assert pipeline.submit(FREE, b"x").result(60).count == 1


def test_a_full_buffer_blocks_until_there_is_room_and_loses_nothing() -> None:
    sink = Sink()
    sink.gate.clear()
    with running(
        sink, linger_ms=0, batch_bytes=1, buffer_bytes=3 * (20 + MESSAGE_OVERHEAD_BYTES), timeout_ms=60_000
    ) as pipeline:
        futures = [pipeline.submit(FREE, b"x" * 20) for _ in range(3)]
        blocked = threading.Thread(target=lambda: futures.append(pipeline.submit(FREE, b"y" * 20)))
        blocked.start()
        assert sink.entered.acquire(timeout=60)
        blocked.join(0.05)
        assert blocked.is_alive(), "the fourth message does not fit"
        sink.gate.set()
        blocked.join(60)
        pipeline.flush()
        assert len([f.result() for f in futures]) == 4


def test_a_buffer_that_stays_full_is_an_error_after_the_timeout() -> None:
    sink = Sink()
    sink.gate.clear()
    with running(sink, linger_ms=0, batch_bytes=1, buffer_bytes=300, timeout_ms=10) as pipeline:
        pipeline.submit(FREE, b"x" * 20)
        with pytest.raises(SendFailed, match="stayed full"):
            pipeline.submit(FREE, b"y" * 20)


def test_a_message_that_could_never_fit_is_refused_at_once() -> None:
    with running(Sink(), batch_bytes=300, buffer_bytes=300) as pipeline, pytest.raises(TooLarge):
        pipeline.submit(FREE, b"x" * 301)


def test_a_flush_does_not_wait_for_what_comes_after_it() -> None:
    sink = Sink()
    with running(sink, linger_ms=60_000) as pipeline:
        before = pipeline.submit(FREE, b"before")
        stop = threading.Event()
        started = threading.Event()

        def keep_submitting() -> None:
            while not stop.is_set():
                pipeline.submit(FREE, b"after")
                started.set()

        busy = threading.Thread(target=keep_submitting)
        busy.start()
        assert started.wait(60)
        pipeline.flush()
        assert before.done()
        assert busy.is_alive()
        stop.set()
        busy.join()


def test_close_sends_what_waits_and_then_refuses() -> None:
    sink = Sink()
    with running(sink, linger_ms=60_000) as pipeline:
        future = pipeline.submit(FREE, b"x")
    assert future.result().status is SendStatus.SEND_OK
    with pytest.raises(Closed):
        pipeline.submit(FREE, b"y")


def test_a_failure_reaches_its_futures_and_those_it_would_let_overtake() -> None:
    sink = Sink()
    sink.gate.clear()
    sink.error = SendFailed("t", ["a: no"], 1)
    with running(sink, linger_ms=0, batch_messages=1) as pipeline:
        first = pipeline.submit(ORDERED, b"1", order=b"k")
        assert sink.entered.acquire(timeout=60)
        behind = pipeline.submit(ORDERED, b"2", order=b"k")
        sink.gate.set()
        assert isinstance(first.exception(60), SendFailed)
        assert isinstance(behind.exception(60), SendFailed)
        sink.error = None
        assert pipeline.submit(ORDERED, b"3", order=b"k").result(60).count == 1
        assert sink.batches == [[b"3"]]


def test_a_failed_part_fails_only_its_messages_and_those_behind_them() -> None:
    begun, gate = threading.Event(), threading.Event()

    def send(_: Destination, batch: pa.RecordBatch, __: Sequence[bytes | None]) -> Parts:
        begun.set()
        assert gate.wait(60)
        yield np.array([1]), SendResult(SendStatus.SEND_OK, QUEUE, 7, 1)
        raise SendFailed("t", ["a: no"], 1)

    pipeline = Pipeline(send, ProducerConfig(linger_ms=60_000, batch_messages=2), SystemClock())
    keyed = Destination("t", QUEUE, is_keyed=True)
    lost, kept = (pipeline.submit(keyed, key, order=key) for key in (b"lost", b"kept"))
    assert begun.wait(60)
    behind = pipeline.submit(keyed, b"x", order=b"lost")
    gate.set()
    assert kept.result(60).offset == 7
    assert isinstance(lost.exception(60), SendFailed)
    assert isinstance(behind.exception(60), SendFailed)
    pipeline.close()


def test_a_defect_in_sending_completes_the_futures_as_well() -> None:
    sink = Sink()
    sink.error = ZeroDivisionError()
    with running(sink, linger_ms=0) as pipeline:
        assert isinstance(pipeline.submit(FREE, b"x").exception(60), ZeroDivisionError)


def test_a_message_cancelled_while_it_waits_is_not_sent() -> None:
    sink = Sink()
    with running(sink, linger_ms=60_000) as pipeline:
        kept = pipeline.submit(FREE, b"kept")
        dropped = pipeline.submit(FREE, b"dropped")
        assert dropped.cancel()
        pipeline.flush()
        assert kept.result().offset == 0
        assert sink.batches == [[b"kept"]]


def test_ordered_messages_of_many_threads_keep_each_threads_order() -> None:
    sink = Sink()
    with running(sink, linger_ms=0, batch_messages=7) as pipeline:

        def submit(name: int) -> None:
            for n in range(200):
                pipeline.submit(ORDERED, b"%d:%d" % (name, n), order=b"%d" % name)

        threads = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipeline.flush()
    sent = [body.split(b":") for batch in sink.batches for body in batch]
    for name in range(4):
        assert [int(n) for who, n in sent if int(who) == name] == list(range(200))


def test_a_callback_is_made_once_whether_it_comes_before_or_after_the_outcome() -> None:
    made: list[tuple[str, int]] = []
    with running(Sink(), linger_ms=60_000) as pipeline:
        futures = [pipeline.submit(FREE, b"x") for _ in range(3)]
        futures[1].add_done_callback(lambda known: made.append(("before", known.result().offset)))
        pipeline.flush()
        assert made == [("before", 1)], "a flush ends when the callbacks were made"
        futures[2].add_done_callback(lambda known: made.append(("after", known.result().offset)))
        assert made == [("before", 1), ("after", 2)]


def test_a_callback_that_raises_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    made: list[SendFuture] = []

    def refuse(_: SendFuture) -> None:
        raise ZeroDivisionError

    with running(Sink(), linger_ms=60_000) as pipeline:
        future = pipeline.submit(FREE, b"x")
        future.add_done_callback(refuse)
        future.add_done_callback(made.append)
        pipeline.flush()
    assert [each.result().offset for each in made] == [0]
    assert "A callback of a submitted message raised" in caplog.text


def test_a_future_without_an_outcome_raises_a_timeout() -> None:
    with running(Sink(), linger_ms=60_000) as pipeline:
        future = pipeline.submit(FREE, b"x")
        assert not future.done()
        with pytest.raises(TimeoutError):
            future.result(0)


def test_a_cancelled_future_says_so_and_one_under_way_cannot_be_cancelled() -> None:
    sink = Sink()
    sink.gate.clear()
    with running(sink, linger_ms=0) as pipeline:
        sent = pipeline.submit(FREE, b"x")
        assert sink.entered.acquire(timeout=60)
        assert not sent.cancel()
        sink.gate.set()
        assert sent.result(60).offset == 0
        assert not sent.cancel()
    with running(Sink(), linger_ms=60_000) as pipeline:
        dropped = pipeline.submit(FREE, b"x")
        assert dropped.cancel()
        assert dropped.done()
        assert dropped.cancelled()
        with pytest.raises(CancelledError):
            dropped.result()


def test_a_future_of_the_standard_library_has_the_same_outcome() -> None:
    sink = Sink()
    with running(sink, linger_ms=60_000) as pipeline:
        stored = [pipeline.submit(FREE, b"x").to_future() for _ in range(2)]
        pipeline.flush()
        done, _ = wait(stored, timeout=60)
        assert sorted(future.result().offset for future in done) == [0, 1]
        sink.error = SendFailed("t", ["a: no"], 1)
        failed = pipeline.submit(FREE, b"x").to_future()
        pipeline.flush()
        assert isinstance(failed.exception(60), SendFailed)


def test_each_row_finds_its_place_in_a_batch_that_was_shared_out() -> None:
    places = [np.array([4, 0]), np.array([2]), np.array([1, 3])]

    def send(_: Destination, batch: pa.RecordBatch, __: Sequence[bytes | None]) -> Parts:
        for at, rows in enumerate(places):
            yield rows, SendResult(SendStatus.SEND_OK, MessageQueue("t", "a", at), 100 * at, len(rows))

    pipeline = Pipeline(send, ProducerConfig(linger_ms=60_000), SystemClock())
    futures = [pipeline.submit(Destination("t", QUEUE, is_keyed=True), b"", order=b"k") for _ in range(5)]
    pipeline.close()
    found = [(future.result().queue.queue, future.result().offset) for future in futures]
    assert found == [(0, 1), (2, 200), (1, 100), (2, 201), (0, 0)]
