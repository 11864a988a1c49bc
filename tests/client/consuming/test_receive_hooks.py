"""Hooks see what a consumer hands out and what becomes of it, and change nothing."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence

import pytest

from rocketq import Client, LocalCluster, Message
from rocketq.consuming.receive_hooks import Receipt
from tests.support.conditions import wait_until


class Seen:
    """A hook that keeps what it sees: bodies that were handed out, and those with an outcome."""

    def __init__(self, only: bytes | None = None) -> None:
        self.only = only
        self.handed_out: list[tuple[bytes, int]] = []
        self.outcomes: list[tuple[bytes, int, bool]] = []

    def after_receipt(self, receipt: Receipt) -> Collection[int]:
        bodies = [message.body for message in receipt.messages()]
        self.handed_out += [(body, receipt.attempt_of(row)) for row, body in enumerate(bodies)]
        return [row for row, body in enumerate(bodies) if self.only in (None, body)]

    def after_handling(
        self, receipt: Receipt, rows: Sequence[int], elapsed_ms: int, is_acknowledged: bool
    ) -> None:
        assert elapsed_ms >= 0
        bodies = [message.body for message in receipt.messages()]
        self.outcomes += [(bodies[row], receipt.attempt_of(row), is_acknowledged) for row in rows]


class Broken:
    """A hook that fails."""

    def after_receipt(self, receipt: Receipt) -> Collection[int]:
        raise RuntimeError("broken")

    def after_handling(
        self, receipt: Receipt, rows: Sequence[int], elapsed_ms: int, is_acknowledged: bool
    ) -> None:
        raise RuntimeError("broken")


class BrokenLater(Broken):
    def after_receipt(self, receipt: Receipt) -> Collection[int]:
        return [0]


@pytest.fixture
def mq(cluster: LocalCluster, topic: str) -> Iterator[Client]:
    """A client whose topic has the messages a, b and c in one queue."""
    with Client(cluster.nameservers) as client:
        client.create_topic(topic, 1, brokers=["broker-a"])
        with client.producer() as producer:
            producer.send_batch(topic, [Message(body) for body in (b"a", b"b", b"c")])
        yield client


def test_a_hook_sees_acknowledgements_of_every_kind(mq: Client, topic: str) -> None:
    for number, settle in enumerate(("ack", "commit", "poll", "close")):
        seen = Seen()
        is_auto = settle in ("poll", "close")
        with mq.consumer(f"g-{topic}-{number}", topic, ack="auto" if is_auto else "manual") as consumer:
            consumer.add_hook(seen)
            polled = consumer.poll()
            if settle == "ack":
                for message in reversed(polled):
                    message.ack()
                    message.ack()
            elif settle == "commit":
                consumer.commit()
            elif settle == "poll":
                consumer.poll(timeout_ms=0)
        assert [body for body, _ in seen.handed_out] == [b"a", b"b", b"c"]
        assert sorted(seen.outcomes) == [(b"a", 1, True), (b"b", 1, True), (b"c", 1, True)]


def test_a_hook_is_told_of_the_messages_that_it_asked_for(mq: Client, topic: str) -> None:
    seen = Seen(only=b"b")
    with mq.consumer(f"g-{topic}", topic) as consumer:
        consumer.add_hook(seen)
        for message in consumer:
            if message.body == b"c":
                message.ack()
                break
    assert seen.outcomes == [(b"b", 1, True)]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_failure_is_told_once_and_what_comes_back_unread_is_not(
    mq: Client, topic: str, ordered: bool
) -> None:
    seen = Seen()
    with mq.consumer(f"g-{topic}", topic, ack="manual", ordered=ordered) as consumer:
        consumer.add_hook(seen)
        first = consumer.poll()
        first[0].nack("1ms")
        again = consumer.poll(timeout_ms=30_000)
        again[0].ack()
        assert (again[0].body, again[0].attempt) == (b"a", 2)
    assert [one for one in seen.outcomes if one[0] == b"a"] == [(b"a", 1, False), (b"a", 2, True)]
    assert all(body == b"a" for body, _, _ in seen.outcomes)


def test_a_listener_s_hook_sees_what_its_function_handled(mq: Client, topic: str) -> None:
    seen = Seen()
    handled: list[bytes] = []
    has_hook = threading.Event()

    def handle(message: Message) -> None:
        handled.append(message.body)
        if handled == [b"a"]:
            # What is handed out from now on is seen by the hook.
            has_hook.wait()
            raise ValueError("not yet")

    settings = {"group": f"g-{topic}", "ordered": True, "suspend_ms": 10, "workers": 1}
    with mq.listener(topic, None, **settings)(handle) as listener:  # type: ignore[call-overload]
        listener.add_hook(seen)
        has_hook.set()
        wait_until(lambda: len(handled) >= 4)
    # Whether the hook came before the first attempt is open.
    assert seen.outcomes[-3:] == [(b"a", 2, True), (b"b", 1, True), (b"c", 1, True)]
    assert seen.outcomes[:-3] in ([], [(b"a", 1, False)])


@pytest.mark.parametrize("hook", [Broken(), BrokenLater()])
def test_a_hook_that_fails_changes_nothing(mq: Client, topic: str, hook: Broken) -> None:
    with mq.consumer(f"g-{topic}", topic, ack="manual") as consumer:
        consumer.add_hook(hook)
        polled = consumer.poll()
        assert [message.body for message in polled] == [b"a", b"b", b"c"]
        consumer.commit(polled)
        assert sum(consumer.lag().values()) == 0
