"""Functions that are called for each message of a group: concurrently, in order, and when they fail."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from rocketq import Client, ConsumedMessage, InvalidConfiguration, Listener, LocalCluster, MessageQueue, Tag
from tests.client.consuming.groups_support import fill, one_queue, wait_for_shares
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


def test_a_decorated_function_is_called_for_each_message(mq: Client, topic: str) -> None:
    fill(mq, topic, 500)
    seen: list[int] = []

    @mq.listener(topic, group="l-each", workers=3)
    def on_message(message: ConsumedMessage) -> None:
        seen.append(int(message.body))

    assert isinstance(on_message, Listener)
    wait_until(lambda: sum(on_message.lag().values()) == 0)
    assert sorted(seen) == list(range(500))
    assert on_message.close()
    assert on_message.is_closed
    with mq.consumer("l-each", [topic]) as consumer:
        assert sum(consumer.owned().values()) == 500


def test_workers_handle_messages_at_the_same_time(mq: Client, topic: str) -> None:
    fill(mq, topic, 60)
    together = threading.Barrier(4)
    with mq.listener(topic, lambda _: together.wait(60), group="l-workers", workers=4) as listener:
        wait_until(lambda: sum(listener.lag().values()) == 0)


def test_with_order_one_worker_at_a_time_has_a_queue(mq: Client, topic: str) -> None:
    fill(mq, topic, 600, queues=2)
    busy: Counter[MessageQueue] = Counter()
    handled: dict[MessageQueue, list[int]] = defaultdict(list)
    most: set[int] = set()
    lock = threading.Lock()

    def handle(message: ConsumedMessage) -> None:
        with lock:
            busy[message.queue] += 1
            most.add(busy[message.queue])
            handled[message.queue].append(message.offset)
        with lock:
            busy[message.queue] -= 1

    with mq.listener(topic, handle, group="l-order", ordered=True, workers=6) as listener:
        wait_until(lambda: sum(listener.lag().values()) == 0)
    assert most == {1}
    assert all(offsets == list(range(len(offsets))) for offsets in handled.values())
    assert sum(map(len, handled.values())) == 600


def test_with_order_a_message_that_fails_holds_its_queue(mq: Client, topic: str) -> None:
    fill(mq, topic, 40, queues=1)
    handled: dict[MessageQueue, list[tuple[int, int]]] = defaultdict(list)

    def handle(message: ConsumedMessage) -> None:
        handled[message.queue].append((message.offset, message.attempt))
        if message.offset == 2 and message.attempt < 4:
            raise ArithmeticError

    with mq.listener(topic, handle, group="l-hold", ordered=True, suspend_ms=10) as listener:
        wait_until(lambda: sum(listener.lag().values()) == 0)
    for offsets in handled.values():
        behind = [(offset, 1) for offset in range(3, offsets[-1][0] + 1)]
        assert offsets == [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (2, 4), *behind]


def test_without_order_others_pass_a_message_that_fails(
    mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception sends the message back: it waits in the group's retry topic, and holds nothing up."""
    attempts: Counter[int] = Counter()

    def handle(message: ConsumedMessage) -> None:
        number = int(message.body)
        attempts[number] += 1
        if number == 7 and message.attempt == 1:
            raise ArithmeticError("seven")

    fill(mq, topic, 20, queues=1)
    retry = f"%RETRY%{topic}"
    with (
        caplog.at_level(logging.ERROR, "rocketq.consuming.listener"),
        mq.listener(topic, handle, group=topic) as listener,
    ):
        wait_until(lambda: len(attempts) == 20)
        wait_until(lambda: retry in mq.topics())
        wait_until(lambda: sum(listener.lag().values()) == 0)
        # On a slow machine the wait of 10 s is over.
        wait_until(lambda: attempts[7] == 2 or len(list(mq.timers.list(retry))) == 1)
    assert "seven" in caplog.text


def test_closing_waits_for_the_message_that_is_being_handled_and_begins_no_other(
    mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 50)
    begun, go_on = threading.Event(), threading.Event()
    handled: list[int] = []

    def handle(message: ConsumedMessage) -> None:
        begun.set()
        assert go_on.wait(60)
        handled.append(int(message.body))

    # With order one worker has the queue. The other has nothing to do, and ends when the listener is closed.
    listener = mq.listener(topic, handle, group=topic, workers=2, ordered=True)
    assert begun.wait(60)
    closing = threading.Thread(target=listener.close)
    closing.start()
    wait_until(lambda: len(workers_of(topic)) == 1)
    go_on.set()
    closing.join()
    assert handled == [0], "the others were not begun"
    with mq.consumer(topic, [topic]) as consumer:
        assert sum(consumer.lag().values()) == 49


def workers_of(group: str) -> list[str]:
    names = (each.name for each in threading.enumerate())
    return [name for name in names if name.startswith(f"rocketq-listener-{group}-")]


def test_a_function_that_does_not_return_does_not_hold_the_close(
    mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(mq, topic, 3, queues=1)
    begun, end = threading.Event(), threading.Event()

    def handle(message: ConsumedMessage) -> None:
        begun.set()
        end.wait(60)

    listener = mq.listener(topic, handle, group="l-stuck", workers=1)
    assert begun.wait(60)
    assert not listener.close(timeout_ms=1)
    end.set()
    assert "had not returned" in caplog.text
    with mq.consumer("l-stuck", [topic]) as consumer:
        assert sum(consumer.lag().values()) == 3, "nothing is lost"


def test_a_function_cannot_close_its_own_listener(mq: Client, topic: str) -> None:
    fill(mq, topic, 1, queues=1)
    refused: list[str] = []

    def handle(message: ConsumedMessage) -> None:
        try:
            listener.close()
        except InvalidConfiguration as error:
            refused.append(str(error))

    go_on = threading.Event()
    listener = mq.listener(topic, lambda m: go_on.wait(60) and handle(m), group="l-self")
    go_on.set()
    wait_until(lambda: sum(listener.lag().values()) == 0)
    listener.close()
    assert "wait for itself" in refused[0]


def test_listeners_and_consumers_of_a_group_share_the_queues(mq: Client, topic: str) -> None:
    fill(mq, topic, 0, queues=2)
    with mq.listener(topic, print, group="l-both") as listener, mq.consumer("l-both", [topic]) as consumer:
        wait_for_shares([listener, consumer], 4)


def test_what_is_no_listener_is_refused(mq: Client, topic: str) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be called"):
        mq.listener(topic, "print", group="g")  # type: ignore[call-overload]
    with pytest.raises(InvalidConfiguration, match="workers"):
        mq.listener(topic, print, group="g", workers=0)
    with pytest.raises(InvalidConfiguration, match="acknowledges a message when"):
        mq.listener(topic, print, group="g", ack="manual")
    with pytest.raises(InvalidConfiguration, match="filter for each topic already"):
        mq.listener({topic: None}, print, group="g", filter=Tag("a"))
