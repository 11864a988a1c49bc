"""Consuming from a real cluster: everything, in order, from where it should, and no further than asked."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from rocketq import (
    CONSUMED_SCHEMA,
    Client,
    Closed,
    InvalidConfiguration,
    InvalidFilter,
    Message,
    MessageQueue,
    OffsetOutOfRange,
    PullConsumer,
    RouteNotFound,
    StoredMessage,
    TopicNotFound,
)
from tests.support.conditions import WAIT_MS, WAIT_S, wait_until


def fill(mq: Client, topic: str, count: int, first: int = 0, queues: int = 2) -> None:
    mq.create_topic(topic, queues=queues, if_absent=True)
    with mq.producer() as producer:
        producer.send_batch(topic, [Message(b"%d" % n) for n in range(first, first + count)])


def take(consumer: PullConsumer, count: int, at_once: int = 500) -> list[StoredMessage]:
    """Poll until `count` messages have come."""
    found: list[StoredMessage] = []
    while len(found) < count:
        messages = consumer.poll(min(at_once, count - len(found)), WAIT_MS)
        assert messages, f"only {len(found)} of {count} came"
        found += messages
    return found


def numbers(messages: list[StoredMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def test_all_queues_of_all_topics_are_read_each_in_its_order(mq: Client, topic: str) -> None:
    other = f"{topic}-other"
    fill(mq, topic, 700)
    fill(mq, other, 300, first=700)
    with mq.pull_consumer([topic, other], start="earliest") as consumer:
        messages = take(consumer, 1_000, at_once=37)
        assert consumer.poll(timeout_ms=0) == []
    assert numbers(messages) == list(range(1_000))
    by_queue: dict[MessageQueue, list[int]] = defaultdict(list)
    for message in messages:
        by_queue[message.queue].append(message.offset)
    assert len(by_queue) == 8
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())


def test_arrow_batches_hold_what_messages_hold(mq: Client, topic: str) -> None:
    fill(mq, topic, 100)
    with mq.pull_consumer(topic, start="earliest") as consumer:
        batches = []
        while sum(b.num_rows for b in batches) < 100:
            batches.append(consumer.poll_arrow(max_messages=30, timeout_ms=WAIT_MS))
            assert 0 < batches[-1].num_rows <= 30
        empty = consumer.poll_arrow(timeout_ms=0)
    assert all(b.schema == CONSUMED_SCHEMA for b in [*batches, empty])
    assert empty.num_rows == 0
    table = pa.Table.from_batches(batches)
    assert sorted(int(b) for b in table["body"].to_pylist()) == list(range(100))
    assert table["stored_at"].null_count == 0


@pytest.mark.parametrize(
    "chosen", [{"tags": "t0 || t7"}, {"sql": "TAGS IN ('t0', 't7') AND n < 1000"}], ids=["tags", "sql"]
)
def test_a_filter_chooses_messages_and_progress_passes_over_the_others(
    mq: Client, topic: str, chosen: dict[str, str]
) -> None:
    mq.create_topic(topic, queues=1)
    sent = [Message(b"%d" % n, tag=f"t{n % 10}", properties={"n": str(n)}) for n in range(400)]
    with mq.producer() as producer:
        producer.send_batch(topic, sent)
        producer.send_batch(topic, [Message(b"last", tag="other")] * 40)
    with mq.pull_consumer(topic, group=f"{topic}-g", **chosen) as consumer:
        first = take(consumer, 33, at_once=7)
        # What is fetched ahead and not handed out yet is not passed over.
        assert sum(consumer.positions().values()) < 400
        messages = first + take(consumer, 47)
        while sum(consumer.positions().values()) < 440:
            assert consumer.poll(timeout_ms=50) == []
        consumer.commit()
        assert consumer.lag() == dict.fromkeys(consumer.positions(), 0)
    assert numbers(messages) == [n for n in range(400) if n % 10 in (0, 7)]
    assert len({(m.queue, m.offset) for m in messages}) == 80
    with mq.pull_consumer(topic, start="earliest") as plain:
        offsets = {m.body: (m.queue, m.offset) for m in take(plain, 440)}
    assert all(offsets[m.body] == (m.queue, m.offset) for m in messages)
    with mq.pull_consumer(topic, group=f"{topic}-g", **chosen) as consumer:
        assert sum(consumer.positions().values()) == 440


def test_a_wrong_filter_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(InvalidFilter, match="position 7"):
        Client("nowhere:1").pull_consumer("t", sql="amount ~ 3")
    with pytest.raises(InvalidConfiguration, match="together with sql"):
        Client("nowhere:1").pull_consumer("t", tags="a", sql="a = 1")


def test_poll_returns_as_soon_as_something_arrives(mq: Client, topic: str) -> None:
    fill(mq, topic, 0)
    with mq.pull_consumer(topic, start="latest") as consumer, mq.producer() as producer:
        assert consumer.poll(timeout_ms=0) == []
        sending = threading.Timer(0.2, producer.send, (topic, b"news"))
        sending.start()
        assert [m.body for m in consumer.poll(timeout_ms=WAIT_MS)] == [b"news"]
        sending.join()


def test_a_group_goes_on_at_its_committed_offset_not_at_its_fetched_one(mq: Client, topic: str) -> None:
    fill(mq, topic, 200)
    with mq.pull_consumer(topic, group="g-resume") as first:
        read = take(first, 80)
        first.commit()
        take(first, 20)
    with mq.pull_consumer(topic, group="g-resume") as second:
        rest = take(second, 120)
    assert numbers(read + rest) == list(range(200))


def test_an_unknown_group_starts_where_the_fallback_says(mq: Client, topic: str) -> None:
    fill(mq, topic, 10)
    with mq.pull_consumer(topic, group="g-new") as consumer:
        assert len(take(consumer, 10)) == 10
    with mq.pull_consumer(topic, group="g-new", start_fallback="latest") as consumer:
        assert sum(consumer.positions().values()) == 10
    with pytest.raises(OffsetOutOfRange):
        mq.pull_consumer(topic, group="g-new", start_fallback="error")


def test_a_start_by_time_takes_what_was_stored_from_then_on(mq: Client, topic: str) -> None:
    fill(mq, topic, 10, queues=1)
    with mq.pull_consumer(topic, start="earliest") as consumer:
        last = max(message.stored_at_us for message in take(consumer, 10))
    fill(mq, topic, 5, first=10)
    with mq.pull_consumer(topic, start="time", start_timestamp_us=last + 1) as consumer:
        assert numbers(take(consumer, 5)) == list(range(10, 15))


def test_a_seek_drops_what_was_fetched_ahead_and_a_commit_may_then_go_back(mq: Client, topic: str) -> None:
    fill(mq, topic, 50, queues=1)
    with mq.pull_consumer(topic, group="g-seek") as consumer:
        take(consumer, 50)
        consumer.commit()
        queue = max(consumer.positions(), key=lambda q: consumer.positions()[q])
        end = consumer.positions()[queue]
        consumer.seek(queue, 3)
        again = take(consumer, end - 3)
        assert [m.offset for m in again] == list(range(3, end))
        consumer.seek(queue, 2)
        consumer.commit()
    with mq.pull_consumer(topic, group="g-seek") as consumer:
        assert consumer.positions()[queue] == 2


def test_a_consumer_seeks_to_the_beginning_the_end_or_a_time(mq: Client, topic: str) -> None:
    fill(mq, topic, 10)
    with mq.pull_consumer(topic, start="earliest") as consumer:
        last = max(message.stored_at_us for message in take(consumer, 10))
        fill(mq, topic, 5, first=10)
        after = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=last + 1)
        for at, expected in ("earliest", range(15)), (after, range(10, 15)), (last + 1, range(10, 15)):
            for queue, offset in mq.offsets_at(topic, at).items():
                consumer.seek(queue, offset)
            assert numbers(take(consumer, len(expected))) == list(expected)
    assert sum(mq.offsets_at(topic, "latest").values()) == 15
    with pytest.raises(InvalidConfiguration, match="earliest, latest or a time"):
        mq.offsets_at(topic, "first")  # type: ignore[arg-type]


def test_a_seek_below_a_long_wait_is_answered_at_once(mq: Client, topic: str) -> None:
    fill(mq, topic, 10, queues=1)
    with mq.pull_consumer(topic, start="latest", hold_ms=60_000) as consumer:
        assert consumer.poll(timeout_ms=200) == []
        for queue in consumer.positions():
            consumer.seek(queue, 0)
        assert numbers(take(consumer, 10)) == list(range(10))


def test_an_offset_beyond_the_end_is_corrected_with_a_warning(
    mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(mq, topic, 10, queues=1)
    with (
        caplog.at_level(logging.WARNING, "rocketq.consuming.pull_consumer"),
        mq.pull_consumer(topic, start="earliest") as consumer,
    ):
        take(consumer, 10)
        queue, end = max(consumer.positions().items(), key=lambda pair: pair[1])
        consumer.seek(queue, end + 1_000)
        while f"below the wanted offset {end + 1_000}" not in caplog.text:
            assert consumer.poll(1, 100) == []
        with mq.producer() as producer:
            while True:
                sent = producer.send(topic, b"99")
                if sent.queue == queue:
                    break
        bodies = {m.offset: m.body for m in take(consumer, 1) if m.queue == queue}
        while end not in bodies:
            bodies |= {m.offset: m.body for m in take(consumer, 1) if m.queue == queue}


def test_an_offset_that_must_not_be_skipped_is_raised_until_it_is_sought(mq: Client, topic: str) -> None:
    fill(mq, topic, 10, queues=1)
    with mq.pull_consumer(topic, start="earliest", offset_reset="error") as consumer:
        take(consumer, 10)
        queue, end = max(consumer.positions().items(), key=lambda pair: pair[1])
        consumer.seek(queue, end + 5)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange) as caught:
                consumer.poll(timeout_ms=WAIT_MS)
        assert caught.value.max_offset == end
        consumer.seek(queue, end - 1)
        assert [m.offset for m in take(consumer, 1)] == [end - 1]


def test_a_backlog_larger_than_the_buffer_is_read_in_bounded_memory(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=2)
    table = pa.table({"body": pa.array([bytes(1_000)] * 20_000, pa.binary())})
    with mq.producer(timeout_ms=60_000) as producer:
        producer.send_batch(topic, table)
    with mq.pull_consumer(topic, start="earliest", prefetch_bytes=1 << 20, pull_bytes=1 << 18) as consumer:
        rows = 0
        while rows < 20_000:
            batch = consumer.poll_arrow(max_messages=5_000, timeout_ms=WAIT_MS)
            assert batch.num_rows
            rows += batch.num_rows
            assert consumer.buffered_bytes <= (1 << 20) + (2 << 20), "one frame over at most"


def test_queues_that_are_added_are_read_from_their_first_message(mq: Client, topic: str) -> None:
    fill(mq, topic, 10, queues=1)
    with mq.pull_consumer(topic, start="latest") as consumer:
        assert len(consumer.positions()) == 2
        mq.alter_topic(topic, read_queues=3, write_queues=3)
        with mq.producer() as producer:
            for broker in ("broker-a", "broker-b"):
                for n in (1, 2):
                    queue = MessageQueue(topic, broker, n)
                    while queue not in mq.route(topic).write_queues():
                        mq.invalidate_route(topic)
                    producer.send(topic, b"%d" % n, queue=queue)
        assert numbers(take(consumer, 4)) == [1, 1, 2, 2]


def test_a_topic_made_anew_is_read_from_its_beginning(
    mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(mq, topic, 20, queues=1)
    with (
        caplog.at_level(logging.WARNING, "rocketq.consuming.pull_consumer"),
        mq.pull_consumer(topic, start="earliest") as consumer,
    ):
        take(consumer, 20)
        mq.delete_topic(topic)
        fill(mq, topic, 4, first=100, queues=1)
        found: list[StoredMessage] = []
        while len(found) < 4:
            try:
                found += consumer.poll(timeout_ms=WAIT_MS)
            except TopicNotFound:
                # It was noticed while the topic was gone: whoever wants the new one says so.
                for queue in consumer.positions():
                    consumer.seek(queue, 0)
    assert numbers(found)[-4:] == [100, 101, 102, 103]


def test_close_does_not_wait_for_a_held_call(mq: Client, topic: str) -> None:
    fill(mq, topic, 1, queues=1)
    consumer = mq.pull_consumer(topic, start="latest", hold_ms=WAIT_MS)
    assert consumer.poll(timeout_ms=300) == []
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(WAIT_S / 2)
    assert not closing.is_alive(), "far below the hold"
    with pytest.raises(Closed):
        consumer.poll()


def test_close_wakes_a_poll_that_waits(mq: Client, topic: str) -> None:
    fill(mq, topic, 0, queues=1)
    consumer = mq.pull_consumer(topic, start="latest")
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(consumer.poll(timeout_ms=WAIT_MS))
        except Closed as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    consumer.close()
    waiting.join(WAIT_S)
    assert isinstance(outcome[0], Closed)


def test_what_cannot_be_consumed_is_refused_when_the_consumer_is_made(mq: Client, topic: str) -> None:
    with pytest.raises(RouteNotFound):
        mq.pull_consumer(topic, start="earliest")
    with pytest.raises(InvalidConfiguration):
        mq.pull_consumer([], start="earliest")
    fill(mq, topic, 1)
    with mq.pull_consumer(topic, start="earliest") as consumer:
        with pytest.raises(InvalidConfiguration, match="no group"):
            consumer.commit()
        with pytest.raises(InvalidConfiguration):
            consumer.seek(MessageQueue(topic, "broker-z", 0), 0)
        with pytest.raises(InvalidConfiguration):
            consumer.poll(max_messages=0)


def test_the_lag_is_what_was_not_handed_out(mq: Client, topic: str) -> None:
    fill(mq, topic, 30)
    with mq.pull_consumer(topic, start="earliest") as consumer:
        take(consumer, 12)
        assert sum(consumer.lag().values()) == 18


# --- chosen queues ------------------------------------------------------------------


def test_only_chosen_queues_are_read_and_the_choice_may_change(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=3, brokers=["broker-a"])
    first, second, third = (MessageQueue(topic, "broker-a", number) for number in range(3))
    with mq.producer() as producer:
        for queue in (first, second, third):
            producer.send_batch(
                topic, [Message(b"%d" % (10 * queue.queue + n)) for n in range(4)], queue=queue
            )
    with mq.pull_consumer(topic, group=f"g-{topic}", queues=[first, second]) as consumer:
        assert set(consumer.positions()) == {first, second}
        assert numbers(take(consumer, 8)) == [0, 1, 2, 3, 10, 11, 12, 13]
        consumer.commit()
        consumer.seek(second, 2)
        consumer.assign([second, third])
        assert set(consumer.positions()) == {second, third}
        # The second goes on where it stands, the third begins where the start says.
        assert numbers(take(consumer, 6)) == [12, 13, 20, 21, 22, 23]
        consumer.assign([first])
        # What the group has committed counts for a queue that was left out and is chosen again.
        assert consumer.positions() == {first: 4}
        consumer.assign(None)
        assert set(consumer.positions()) == {first, second, third}


def test_a_queue_that_is_not_chosen_stays_out_when_the_topic_grows(mq: Client, topic: str) -> None:
    fill(mq, topic, 10, queues=1)
    chosen = MessageQueue(topic, "broker-a", 0)
    with mq.pull_consumer(topic, start="earliest", queues=[chosen]) as consumer:
        mq.alter_topic(topic, read_queues=2, write_queues=2)
        grown = MessageQueue(topic, "broker-b", 1)
        wait_until(lambda: grown in mq.route(topic).read_queues())
        consumer.assign([chosen, grown])
        with mq.producer() as producer:
            producer.send(topic, b"new", queue=grown)
        found = take(consumer, 1)
        while found[-1].body != b"new":
            found += take(consumer, 1)
        assert {message.queue for message in found} <= {chosen, grown}
        assert set(consumer.positions()) == {chosen, grown}


def test_a_paused_queue_of_a_pull_consumer_gives_nothing_and_keeps_no_other_back(
    mq: Client, topic: str
) -> None:
    mq.create_topic(topic, queues=2, brokers=["broker-a"])
    stands, other = (MessageQueue(topic, "broker-a", number) for number in range(2))
    with mq.pull_consumer(topic, start="earliest") as consumer, mq.producer() as producer:
        consumer.pause(stands)
        producer.send(topic, b"0", queue=stands)
        wait_until(lambda: consumer.lag()[stands] == 1)
        producer.send(topic, b"1", queue=other)
        assert numbers(take(consumer, 1)) == [1]
        assert consumer.poll(timeout_ms=0) == []
        consumer.resume(stands)
        assert numbers(take(consumer, 1)) == [0]


def test_queues_that_cannot_be_read_are_refused_and_nothing_changes(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    there, beyond = (MessageQueue(topic, "broker-a", number) for number in range(2))
    with pytest.raises(InvalidConfiguration, match="no route of its topics has it now") as refused:
        mq.pull_consumer(topic, start="earliest", queues=[there, beyond])
    assert f"rocketq topic describe {topic}" in str(refused.value.hint)
    with mq.pull_consumer(topic, start="earliest", queues=[there]) as consumer:
        for wrong, why in (
            ([beyond], "no route of its topics has it now"),
            ([], "a consumer of no queue would read nothing"),
            ([MessageQueue("another", "broker-a", 0)], f"this consumer reads {topic}"),
        ):
            with pytest.raises(InvalidConfiguration, match=why):
                consumer.assign(wrong)
        with pytest.raises(InvalidConfiguration, match="this consumer does not read it"):
            consumer.pause(there, beyond)
        assert set(consumer.positions()) == {there}
        with mq.producer() as producer:
            producer.send(topic, b"7", queue=there)
        assert numbers(take(consumer, 1)) == [7]
