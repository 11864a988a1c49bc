"""Consuming as a member of a group, on real brokers: in a loop, by polling, as Arrow, and its progress."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from rocketq import (
    Client,
    Closed,
    Consumer,
    GroupDisabled,
    InvalidConfiguration,
    InvalidFilter,
    LocalCluster,
    Message,
    MessageQueue,
    ReservedName,
    RouteNotFound,
    Sql,
    Tag,
)
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.groups import SetGroupRequest
from tests.client.consuming.groups_support import fill, numbers, one_queue, shares, take, wait_for_shares
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient, patient_transport


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


# --- sharing ------------------------------------------------------------------------


def test_members_share_the_queues_and_get_each_message_once(mq: Client, topic: str) -> None:
    fill(mq, topic, 400, queues=3)
    with mq.consumer("g-share", [topic]) as one, mq.consumer("g-share", [topic]) as two:
        wait_for_shares([one, two], 6)
        first, second = take(one, 1), take(two, 1)
        lag = sum(one.lag().values()) + sum(two.lag().values())
        first += take(one, sum(one.lag().values()) - len(first))
        second += take(two, sum(two.lag().values()) - len(second))
    assert lag == 400
    assert numbers([*first, *second]) == list(range(400))


def test_a_member_that_leaves_hands_over_where_it_stood(mq: Client, topic: str) -> None:
    fill(mq, topic, 300, queues=2)
    with mq.consumer("g-leave", [topic]) as one:
        with mq.consumer("g-leave", [topic]) as two:
            wait_for_shares([one, two], 4)
            read = take(two, 50)
        wait_for_shares([one], 4)
        read += take(one, 250)
        assert one.poll(timeout_ms=0) == []
    assert numbers(read) == list(range(300))


def test_a_queue_waits_for_the_message_that_is_being_handled(mq: Client, topic: str) -> None:
    fill(mq, topic, 80, queues=2)
    with mq.consumer("g-handle", [topic], hand_over_ms=60_000) as one:
        for message in one:
            if message.queue.broker == "broker-b":
                break  # It is being handled; its queue is one of those that go to the next member.
        with mq.consumer("g-handle", [topic]) as two:
            wait_until(lambda: len(two.owned()) == 1)
            assert message.queue not in two.owned()
            message.ack()
            wait_until(lambda: message.queue in two.owned())
            assert two.owned()[message.queue] == message.offset + 1


def test_no_message_comes_twice_while_members_come_and_go(mq: Client, topic: str) -> None:
    """Nothing crashes, so each message is handled exactly once, and each queue's in its order."""
    fill(mq, topic, 3_000, queues=4)
    handled: dict[MessageQueue, list[int]] = defaultdict(list)
    lock = threading.Lock()
    enough = threading.Event()

    def consume(consumer: Consumer) -> None:
        for message in consumer:
            with lock:
                handled[message.queue].append(message.offset)
                if sum(map(len, handled.values())) >= 6_000:
                    enough.set()

    members = [mq.consumer("g-churn", [topic], hand_over_ms=60_000) for _ in range(2)]
    threads = [threading.Thread(target=consume, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for round_number in range(3):
        members.append(mq.consumer("g-churn", [topic], hand_over_ms=60_000))
        threads.append(threading.Thread(target=consume, args=(members[-1],)))
        threads[-1].start()
        fill(mq, topic, 1_000, first=3_000 + round_number * 1_000, queues=4)
        members[round_number].close()
        wait_for_shares(members[round_number + 1 :], 8)
    assert enough.wait(60)
    for member in members:
        member.close()
    for thread in threads:
        thread.join()
    assert all(offsets == list(range(len(offsets))) for offsets in handled.values())
    assert sum(map(len, handled.values())) == 6_000


@pytest.mark.parametrize("allocation", ["average", "circle", "consistent_hash"])
def test_other_strategies_cover_all_queues_too(mq: Client, topic: str, allocation: str) -> None:
    fill(mq, topic, 0, queues=4)
    group = f"g-{allocation}"
    with mq.consumer(group, [topic], allocation=allocation) as one:
        with mq.consumer(group, [topic], allocation=allocation) as two:
            wait_until(lambda: len(one.owned()) + len(two.owned()) == 8)
            assert not set.intersection(*shares([one, two]))
        wait_until(lambda: len(one.owned()) == 8)


def test_a_queue_that_appears_later_is_read_from_its_first_message(mq: Client, topic: str) -> None:
    fill(mq, topic, 20, queues=1)
    with mq.consumer("g-grow", [topic], start="latest") as consumer:
        mq.alter_topic(topic, read_queues=3, write_queues=3)
        fill(mq, topic, 60, first=20)
        wait_until(lambda: len(consumer.owned()) == 6)
        read = take(consumer, 60)
    assert numbers(read) == list(range(20, 80))


def test_a_member_with_another_filter_is_told_and_gets_nothing(mq: Client, topic: str) -> None:
    fill(mq, topic, 10)
    with mq.consumer("g-differ", {topic: Tag("paid")}) as one:
        with mq.consumer("g-differ", {topic: Tag("sent")}) as two:
            [difference] = two.differences
            assert (difference.kind, difference.topic, difference.theirs) == ("filter", topic, one.client_id)
            assert (one.differences, two.owned(), len(one.owned())) == ((), {}, 4)
        # The new filter takes effect when the last member with the old one has left.
        with mq.consumer("g-differ", {topic: Tag("sent")}) as two:
            one.close()
            wait_until(lambda: len(two.owned()) == 4)


def test_filters_are_those_of_each_topic(mq: Client, topic: str) -> None:
    other = f"{topic}-other"
    for each in (topic, other):
        mq.create_topic(each, queues=1)
        with mq.producer() as producer:
            sent = [
                Message(b"%d" % n, tag="odd" if n % 2 else "even", properties={"n": str(n)})
                for n in range(40)
            ]
            producer.send_batch(each, sent)
    with mq.consumer("g-filter", {topic: Sql("n < 10"), other: Tag("odd")}) as consumer:
        read = take(consumer, 30)
    by_topic = defaultdict(list)
    for message in read:
        by_topic[message.queue.topic].append(int(message.body))
    assert sorted(by_topic[topic]) == list(range(10))
    assert sorted(by_topic[other]) == list(range(1, 40, 2))


# --- where to begin, pause, seek ----------------------------------------------------


def test_a_group_begins_where_it_is_told_and_goes_on_where_it_was(mq: Client, topic: str) -> None:
    fill(mq, topic, 30, queues=1)
    with mq.consumer("g-first", [topic], start="earliest") as consumer:
        stored_at = sorted(message.stored_at_us for message in take(consumer, 30))
    with mq.consumer("g-last", [topic], start="latest"):
        pass
    fill(mq, topic, 10, first=30, queues=1)
    for group, expected in (("g-first", 10), ("g-last", 10)):
        with mq.consumer(group, [topic], start="earliest") as consumer:
            assert numbers(take(consumer, expected)) == list(range(30, 40))
            assert consumer.poll(timeout_ms=0) == []
    with mq.consumer("g-time", [topic], start="time", start_timestamp_us=stored_at[-1] + 1) as consumer:
        assert numbers(take(consumer, 10)) == list(range(30, 40))


def test_a_paused_queue_gives_nothing_until_it_is_resumed(mq: Client, topic: str) -> None:
    fill(mq, topic, 40, queues=1)
    with mq.consumer("g-pause", [topic]) as consumer:
        one, two = sorted(consumer.owned())
        consumer.pause(one)
        read = take(consumer, sum(n for q, n in consumer.lag().items() if q == two))
        assert {message.queue for message in read} == {two}
        assert consumer.poll(timeout_ms=100) == []
        consumer.resume(one)
        read += take(consumer, 40 - len(read))
    assert numbers(read) == list(range(40))


def test_a_pause_or_seek_in_a_loop_holds_from_the_next_message_on(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 100)
    with mq.consumer("g-within", [topic]) as consumer:
        seen = []
        for message in consumer:
            seen.append(message.offset)
            if message.offset == 9 and len(seen) == 10:
                consumer.seek(message.queue, 5)
            if len(seen) == 20:
                consumer.pause(message.queue)
                message.ack()
                break
        assert seen == [*range(10), *range(5, 15)]
        assert consumer.poll(timeout_ms=50) == []
        consumer.resume(*consumer.owned())
        assert [message.offset for message in take(consumer, 85)] == list(range(15, 100))


def test_a_seek_goes_back_and_the_commit_goes_with_it(mq: Client, topic: str) -> None:
    fill(mq, topic, 40, queues=1)
    with mq.consumer("g-seek", [topic]) as consumer:
        take(consumer, 40)
        consumer.commit()
        queue, end = max(consumer.owned().items(), key=lambda pair: pair[1])
        consumer.seek(queue, 3)
        assert [m.offset for m in take(consumer, end - 3)] == list(range(3, end))
        consumer.seek(queue, 2)
        consumer.commit()
        with pytest.raises(InvalidConfiguration, match="does not own"):
            consumer.seek(MessageQueue(topic, "nowhere", 0), 0)
        with pytest.raises(InvalidConfiguration, match="begin at 0"):
            consumer.seek(queue, -1)
    with mq.consumer("g-seek", [topic]) as consumer:
        assert consumer.owned()[queue] == 2
        consumer.seek(queue, 1)
    with mq.consumer("g-seek", [topic]) as consumer:
        assert consumer.owned()[queue] == 1, "closing stores what was sought, too"


# --- misuse -------------------------------------------------------------------------


def test_a_loop_ends_when_another_thread_closes_the_consumer(mq: Client, topic: str) -> None:
    fill(mq, topic, 0)
    consumer = mq.consumer("g-close", [topic])
    loop = iter(consumer)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    assert list(loop) == []
    closing.join()
    consumer.close()
    with pytest.raises(Closed):
        consumer.poll()
    with pytest.raises(Closed):
        consumer.commit()


def test_a_disabled_group_is_refused(cluster: LocalCluster, mq: Client, topic: str) -> None:
    fill(mq, topic, 0)
    with patient_transport() as transport:
        for name, address in cluster.brokers.items():
            BrokerApi(transport, name, address).set_group("g-disabled", SetGroupRequest(enabled=False))
    with pytest.raises(GroupDisabled):
        mq.consumer("g-disabled", [topic])


def test_wrong_arguments_are_refused_before_anything_is_asked(mq: Client, topic: str) -> None:
    nowhere = Client("nowhere:1")
    with pytest.raises(InvalidFilter, match="position 7"):
        Sql("amount ~ 3")
    with pytest.raises(InvalidConfiguration, match="it is no filter"):
        nowhere.consumer("g", {"t": "paid"})  # type: ignore[dict-item]
    with pytest.raises(InvalidConfiguration, match="names no topic"):
        nowhere.consumer("g", [])
    with pytest.raises(InvalidConfiguration, match="no such strategy"):
        nowhere.consumer("g", "t", allocation="fair")
    with pytest.raises(InvalidConfiguration, match="reads all queues"):
        nowhere.consumer("g", "t", allocation="average", broadcasting=True, offsets_file="x")
    with pytest.raises(InvalidConfiguration, match="share no queue"):
        nowhere.consumer("g", "t", broadcasting=True, ordered=True, offsets_file="x")
    with pytest.raises(ReservedName):
        nowhere.consumer("%RETRY%g", "t")
    with pytest.raises(RouteNotFound):
        mq.consumer("g", f"{topic}-missing")


def test_a_queue_that_is_paused_or_full_keeps_no_news_of_other_queues_back(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=2, brokers=["broker-a"])
    stands, other = (MessageQueue(topic, "broker-a", number) for number in range(2))

    def behind(consumer: Consumer, messages: int) -> None:
        wait_until(lambda: consumer.lag()[stands] == messages)

    with (
        mq.consumer("g-news", [topic], ack="manual", queue_messages=1) as consumer,
        mq.producer() as producer,
    ):
        consumer.pause(stands)
        producer.send(topic, b"0", queue=stands)
        behind(consumer, 1)
        producer.send(topic, b"1", queue=other)
        assert [message.queue for message in take(consumer, 1)] == [other]
        consumer.resume(stands)
        assert [message.queue for message in take(consumer, 1)] == [stands]
        # Two messages are held, which is more than one: nothing more of the queue is fetched.
        producer.send(topic, b"2", queue=stands)
        take(consumer, 1)
        producer.send(topic, b"3", queue=stands)
        behind(consumer, 3)
        producer.send(topic, b"4", queue=other)
        assert [message.queue for message in take(consumer, 1)] == [other]
        consumer.commit()
        assert [message.queue for message in take(consumer, 1)] == [stands]
