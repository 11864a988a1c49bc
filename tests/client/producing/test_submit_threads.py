"""The pipeline: bounded, never dropping, and every future completed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import pytest

from rocketq.clock import SystemClock
from rocketq.config import ProducerConfig
from rocketq.errors import Closed, SendFailed, TooLarge
from rocketq.model import Message, MessageQueue, SendResult, SendStatus
from rocketq.producing.accumulator import Destination, Waiting
from rocketq.producing.submit_threads import Pipeline

FREE = Destination("t")
QUEUE = MessageQueue("t", "a", 0)
ORDERED = Destination("t", QUEUE)
Parts: TypeAlias = Iterator[tuple[Iterable[int], SendResult]]


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

    def __call__(self, destination: Destination, messages: Sequence[Waiting]) -> Parts:
        self.entered.release()
        assert self.gate.wait(60)
        with self._lock:
            if self.error is not None:
                raise self.error
            offset = self._offset
            self._offset += len(messages)
            self.batches.append([w.message.body for w in messages])
        yield range(len(messages)), SendResult(SendStatus.SEND_OK, QUEUE, offset, len(messages))


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
        futures = [pipeline.submit(FREE, Message(str(n).encode()), None) for n in range(5)]
        pipeline.flush()
        assert [f.result().offset for f in futures] == [0, 1, 2, 3, 4]
        assert sink.batches == [[b"0", b"1", b"2", b"3", b"4"]], "one batch, as nothing hurried it"


def test_a_lingering_message_is_sent_without_a_flush() -> None:
    with running(Sink(), linger_ms=1) as pipeline:
        assert pipeline.submit(FREE, Message(b"x"), None).result(60).count == 1


def test_a_full_buffer_blocks_until_there_is_room_and_loses_nothing() -> None:
    sink = Sink()
    sink.gate.clear()
    with running(sink, linger_ms=0, batch_bytes=300, buffer_bytes=1_000, timeout_ms=60_000) as pipeline:
        futures = [pipeline.submit(FREE, Message(b"x" * 20), None) for _ in range(3)]
        blocked = threading.Thread(
            target=lambda: futures.append(pipeline.submit(FREE, Message(b"y" * 20), None))
        )
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
    with running(sink, linger_ms=0, batch_bytes=300, buffer_bytes=300, timeout_ms=10) as pipeline:
        pipeline.submit(FREE, Message(b"x" * 20), None)
        with pytest.raises(SendFailed, match="stayed full"):
            pipeline.submit(FREE, Message(b"y" * 20), None)


def test_a_message_that_could_never_fit_is_refused_at_once() -> None:
    with running(Sink(), batch_bytes=300, buffer_bytes=300) as pipeline, pytest.raises(TooLarge):
        pipeline.submit(FREE, Message(b"x" * 301), None)


def test_a_flush_does_not_wait_for_what_comes_after_it() -> None:
    sink = Sink()
    with running(sink, linger_ms=60_000) as pipeline:
        before = pipeline.submit(FREE, Message(b"before"), None)
        stop = threading.Event()
        started = threading.Event()

        def keep_submitting() -> None:
            while not stop.is_set():
                pipeline.submit(FREE, Message(b"after"), None)
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
        future = pipeline.submit(FREE, Message(b"x"), None)
    assert future.result().status is SendStatus.SEND_OK
    with pytest.raises(Closed):
        pipeline.submit(FREE, Message(b"y"), None)


def test_a_failure_reaches_its_futures_and_those_it_would_let_overtake() -> None:
    sink = Sink()
    sink.gate.clear()
    sink.error = SendFailed("t", ["a: no"], 1)
    with running(sink, linger_ms=0, batch_messages=1) as pipeline:
        first = pipeline.submit(ORDERED, Message(b"1"), b"k")
        assert sink.entered.acquire(timeout=60)
        behind = pipeline.submit(ORDERED, Message(b"2"), b"k")
        sink.gate.set()
        assert isinstance(first.exception(60), SendFailed)
        assert isinstance(behind.exception(60), SendFailed)
        sink.error = None
        assert pipeline.submit(ORDERED, Message(b"3"), b"k").result(60).count == 1
        assert sink.batches == [[b"3"]]


def test_a_failed_part_fails_only_its_messages_and_those_behind_them() -> None:
    begun, gate = threading.Event(), threading.Event()

    def send(_: Destination, messages: Sequence[Waiting]) -> Parts:
        begun.set()
        assert gate.wait(60)
        yield [1], SendResult(SendStatus.SEND_OK, QUEUE, 7, 1)
        if len(messages) > 1:
            raise SendFailed("t", ["a: no"], 1)
        yield [0], SendResult(SendStatus.SEND_OK, QUEUE, 8, 1)

    pipeline = Pipeline(send, ProducerConfig(linger_ms=60_000, batch_messages=2), SystemClock())
    keyed = Destination("t", QUEUE, is_keyed=True)
    lost, kept = (pipeline.submit(keyed, Message(key), key) for key in (b"lost", b"kept"))
    assert begun.wait(60)
    behind = pipeline.submit(keyed, Message(b"x"), b"lost")
    gate.set()
    assert kept.result(60).offset == 7
    assert isinstance(lost.exception(60), SendFailed)
    assert isinstance(behind.exception(60), SendFailed)
    pipeline.close()


def test_a_defect_in_sending_completes_the_futures_as_well() -> None:
    sink = Sink()
    sink.error = ZeroDivisionError()
    with running(sink, linger_ms=0) as pipeline:
        assert isinstance(pipeline.submit(FREE, Message(b"x"), None).exception(60), ZeroDivisionError)


def test_a_message_cancelled_while_it_waits_is_not_sent() -> None:
    sink = Sink()
    with running(sink, linger_ms=60_000) as pipeline:
        kept = pipeline.submit(FREE, Message(b"kept"), None)
        dropped = pipeline.submit(FREE, Message(b"dropped"), None)
        assert dropped.cancel()
        pipeline.flush()
        assert kept.result().offset == 0
        assert sink.batches == [[b"kept"]]


def test_ordered_messages_of_many_threads_keep_each_threads_order() -> None:
    sink = Sink()
    with running(sink, linger_ms=0, batch_messages=7) as pipeline:

        def submit(name: int) -> None:
            for n in range(200):
                pipeline.submit(ORDERED, Message(b"%d:%d" % (name, n)), b"%d" % name)

        threads = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipeline.flush()
    sent = [body.split(b":") for batch in sink.batches for body in batch]
    for name in range(4):
        assert [int(n) for who, n in sent if int(who) == name] == list(range(200))
