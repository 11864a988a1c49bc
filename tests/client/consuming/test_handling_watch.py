"""A listener's function that does not return in time: its message is given up, and the others go on."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from rocketq import Client, ConsumedMessage, InvalidConfiguration, LocalCluster
from rocketq.clock import ManualClock
from tests.client.consuming.groups_support import fill, one_queue
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """What functions that do not return wait for: the end of the test."""
    made = threading.Event()
    yield made
    made.set()


def test_a_message_whose_function_never_returns_is_tried_again(
    cluster: LocalCluster, topic: str, end: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    calls: Counter[int] = Counter()

    def handle(message: ConsumedMessage) -> None:
        calls[int(message.body)] += 1
        if message.body == b"7":
            end.wait()

    def is_overdue() -> bool:
        clock.advance(100)
        return bool(listener.overdue)

    with PatientClient(cluster.nameservers, clock=clock) as mq:
        one_queue(mq, topic, 100)
        listener = mq.listener(topic, handle, group=topic, workers=2, consume_timeout_ms=200, max_attempts=1)
        late_id = f"broker-a:{topic}:0:7"
        # Time stands still until the other worker has nothing left to do: it is never late.
        wait_until(lambda: calls[7] == 1 and listener.in_hand == (late_id,) and not listener.ready_messages)
        with caplog.at_level(logging.WARNING, "rocketq.consuming.listener"):
            wait_until(is_overdue)
        [late] = listener.overdue
        assert (late.message_id, late.offset, late.attempt) == (late_id, 7, 1)
        assert late.running_ms >= 200
        assert late_id in caplog.text
        wait_until(lambda: list(listener.owned().values()) == [100])
        assert calls == Counter(range(100)), "what its worker had taken besides is handled by another, once"
        [letter] = mq.dead_letters(topic).list()
        assert (letter.body, letter.reason) == (b"7", "TimeoutError: no return in 200 ms")
        end.set()
        wait_until(lambda: listener.overdue == ())


def test_where_order_counts_the_queue_waits_and_the_message_is_told_of(
    mq: Client, topic: str, end: threading.Event
) -> None:
    one_queue(mq, topic, 5)
    seen: list[int] = []

    def handle(message: ConsumedMessage) -> None:
        seen.append(message.offset)
        if message.offset == 1:
            end.wait()

    with mq.listener(topic, handle, group=topic, ordered=True, consume_timeout_ms=50) as listener:
        wait_until(lambda: [each.offset for each in listener.overdue] == [1])
        assert list(listener.owned().values()) == [1]
        end.set()
        wait_until(lambda: seen == [0, 1, 2, 3, 4])
        wait_until(lambda: listener.overdue == ())


def test_a_close_that_does_not_wait_for_a_function_names_its_message(
    mq: Client, topic: str, end: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one_queue(mq, topic, 3)
    begun = threading.Event()

    def handle(message: ConsumedMessage) -> None:
        begun.set()
        end.wait()

    listener = mq.listener(topic, handle, group=topic, workers=1)
    assert begun.wait(60)
    assert not listener.close(timeout_ms=1)
    assert f"broker-a:{topic}:0:0" in caplog.text


def test_only_listeners_have_a_consumption_timeout(mq: Client, topic: str) -> None:
    fill(mq, topic, 0)
    with pytest.raises(InvalidConfiguration, match="bounds the function of a listener"):
        mq.consumer("g", topic, consume_timeout_ms=5)
    with pytest.raises(InvalidConfiguration, match="must be at least 1"):
        mq.listener(topic, print, group="g", consume_timeout_ms=0)
