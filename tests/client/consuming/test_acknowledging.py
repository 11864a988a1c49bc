"""Acknowledging as a member of a group, on real brokers: what counts as handled, and what comes again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from rocketq import (
    CONSUMED_SCHEMA,
    Client,
    InvalidConfiguration,
    LocalCluster,
)
from rocketq.net.broker_api import BrokerApi
from tests.client.consuming.groups_support import fill, numbers, one_queue, take
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient, patient_transport


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


def test_what_is_not_acknowledged_comes_again(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 20)
    with mq.consumer("g-again", [topic], ack="manual") as consumer:
        for message in take(consumer, 20):
            if message.offset % 8 != 5:
                message.ack()
        assert list(consumer.owned().values()) == [5]
    with mq.consumer("g-again", [topic]) as consumer:
        assert numbers(take(consumer, 15)) == list(range(5, 20))


def test_a_loop_acknowledges_a_message_when_it_asks_for_the_next(mq: Client, topic: str) -> None:
    fill(mq, topic, 10, queues=1)

    def fail_at(count: int) -> None:
        with mq.consumer("g-loop", [topic]) as consumer:
            for number, _ in enumerate(consumer, 1):
                if number == count:
                    raise ArithmeticError

    with contextlib.suppress(ArithmeticError):
        fail_at(4)
    with mq.consumer("g-loop", [topic]) as consumer:
        assert sum(consumer.owned().values()) == 3
        for number, _ in enumerate(consumer, 1):
            if number == 4:
                break
    with mq.consumer("g-loop", [topic]) as consumer:
        assert sum(consumer.owned().values()) == 6, "break does not acknowledge"
        for message in consumer:
            message.ack()
            break
    with mq.consumer("g-loop", [topic]) as consumer:
        assert sum(consumer.owned().values()) == 7
        consumer.poll(max_messages=2, timeout_ms=WAIT_MS)
    with mq.consumer("g-loop", [topic]) as consumer:
        assert sum(consumer.owned().values()) == 9, "the block ended without an exception"


def test_a_loop_that_was_left_gives_its_message_back(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 3)
    with mq.consumer(topic, [topic]) as consumer:
        for message in consumer:
            failed = message
            break
        assert [each.offset for each in take(consumer, 2)] == [1, 2]
        wait_until(lambda: f"%RETRY%{topic}" in mq.topics())
        wait_until(lambda: len(list(mq.timers.list(f"%RETRY%{topic}"))) == 1)
        [waiting] = mq.timers.list(f"%RETRY%{topic}")
        assert (waiting.properties or {})["ORIGIN_MESSAGE_ID"] == failed.message_id
        assert waiting.deliver_at_ms - waiting.stored_at_us // 1000 <= 10_000
        consumer.poll(timeout_ms=0)
        wait_until(lambda: consumer.owned()[failed.queue] == 3)


def test_an_ordered_consumer_gets_nothing_behind_a_failed_message(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 10)
    seen = []
    with mq.consumer("g-ordered", [topic], ordered=True, suspend_ms=10) as consumer:
        for message in consumer:
            seen.append((message.offset, message.attempt))
            if message.offset in (3, 7) and message.attempt < 3:
                message.nack()
            if message.offset == 9:
                break
    assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 1), (5, 1), (6, 1), (7, 1), (7, 2),
                    (7, 3), (8, 1), (9, 1)]  # fmt: skip


def test_an_ordered_loop_that_was_left_goes_on_at_its_message(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 10)
    seen = []
    with mq.consumer("g-left-ordered", [topic], ordered=True, suspend_ms=10) as consumer:
        for acknowledged in (False, True, False):
            for message in consumer:
                seen.append((message.offset, message.attempt))
                if len(seen) % 4 == 3:
                    if acknowledged:
                        message.ack()
                    break
        for message in consumer:
            seen.append((message.offset, message.attempt))
            if message.offset == 9:
                break
    # Left at 2, at 5 after its ack, and at 9.
    first, again = [(offset, 1) for offset in range(10)], [(2, 2), (9, 2)]
    assert seen == sorted(first + again)


def test_a_message_that_is_kept_from_a_loop_may_be_acknowledged_later(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 10)
    kept = []
    with mq.consumer("g-kept", [topic], ack="manual") as consumer:
        for message in consumer:
            kept.append(message)
            if len(kept) == 4:
                break
        kept += take(consumer, 6)
        assert [(message.offset, message.attempt) for message in kept] == [(n, 1) for n in range(10)]
        assert list(consumer.owned().values()) == [0]
        for message in reversed(kept):
            message.ack()
        assert list(consumer.owned().values()) == [10]


def test_a_batch_can_be_committed_and_the_rest_comes_again(mq: Client, topic: str) -> None:
    fill(mq, topic, 1_000, queues=2)
    with mq.consumer("g-arrow", [topic], ack="manual") as consumer:
        batches = []
        for batch in consumer.arrow(max_rows=300, timeout_ms=WAIT_MS):
            assert batch.schema == CONSUMED_SCHEMA
            batches.append(batch)
            if len(batches) == 3:
                break
            consumer.commit(batch)
    committed = sum(batch.num_rows for batch in batches[:2])
    with mq.consumer("g-arrow", [topic]) as consumer:
        assert sum(consumer.owned().values()) == committed
        read = take(consumer, 1_000 - committed)
    bodies = [int(body.as_py()) for batch in batches[:2] for body in batch.column("body")]
    assert sorted(bodies + numbers(read)) == list(range(1_000))


def test_an_arrow_loop_gives_an_empty_batch_when_nothing_comes(mq: Client, topic: str) -> None:
    fill(mq, topic, 0)
    with mq.consumer("g-empty", [topic]) as consumer:
        assert next(iter(consumer.arrow(timeout_ms=0))).num_rows == 0
        consumer.commit(pa.RecordBatch.from_pylist([], schema=CONSUMED_SCHEMA))
        with pytest.raises(InvalidConfiguration, match="columns are missing"):
            consumer.commit(pa.RecordBatch.from_pylist([{"body": b""}]))


def test_a_batch_at_which_a_loop_was_left_is_handed_out_again(mq: Client, topic: str) -> None:
    fill(mq, topic, 500, queues=2)
    with mq.consumer("g-arrow-left", [topic]) as consumer:
        for batch in consumer.arrow(max_rows=200, timeout_ms=WAIT_MS):
            left = sorted(int(body.as_py()) for body in batch.column("body"))
            break
        read = []
        for batch in consumer.arrow(max_rows=200, timeout_ms=WAIT_MS):
            read += [int(body.as_py()) for body in batch.column("body")]
            if len(read) >= 500:
                break
        assert sorted(read) == list(range(500))
        assert set(left) < set(read)


def test_closing_waits_for_the_thread_that_handles_a_message(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 10)
    begun, go_on = threading.Event(), threading.Event()
    handled: list[int] = []
    consumer = mq.consumer("g-wait", [topic], hand_over_ms=60_000)

    def handle() -> None:
        for message in consumer:
            begun.set()
            assert go_on.wait(60)
            handled.append(message.offset)

    handling = threading.Thread(target=handle)
    handling.start()
    assert begun.wait(60)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    go_on.set()
    closing.join()
    handling.join()
    with mq.consumer("g-wait", [topic]) as again:
        assert list(again.owned().values()) == [len(handled)]


def test_committing_without_arguments_covers_what_was_handed_out(mq: Client, topic: str) -> None:
    fill(mq, topic, 100, queues=2)
    with mq.consumer("g-commit", [topic], ack="manual") as consumer:
        take(consumer, 60)
        consumer.commit()
        take(consumer, 10)
    with mq.consumer("g-commit", [topic], ack="manual") as consumer:
        assert sum(consumer.owned().values()) == 60
        one, *others = take(consumer, 40)
        consumer.commit(one)
        assert sum(consumer.owned().values()) == 61 - (one.offset > consumer.owned()[one.queue])
        consumer.commit(others)
        assert sum(consumer.lag().values()) == 0


def test_the_progress_is_stored_while_a_loop_runs(cluster: LocalCluster, mq: Client, topic: str) -> None:
    fill(mq, topic, 50, queues=1)
    with patient_transport() as transport, mq.consumer("g-beat", [topic], commit_ms=20) as consumer:
        take(consumer, 50)
        consumer.poll(timeout_ms=0)
        apis = [BrokerApi(transport, *pair) for pair in cluster.brokers.items()]

        def stored() -> int:
            found = (api.group_offsets("g-beat", topic).offsets for api in apis)
            return sum(one.offset for each in found for one in each)

        wait_until(lambda: stored() == 50)
