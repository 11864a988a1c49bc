"""Sending from asyncio: results, company, back-pressure, cancellation, and what is wrong with a message."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rocketq import (
    AsyncClient,
    AsyncProducer,
    Client,
    Closed,
    InvalidMessage,
    LocalCluster,
    Message,
    NameServersUnreachable,
    RouteNotFound,
    SendFailed,
    TooLarge,
)
from rocketq.errors import RocketqError
from rocketq.net.transport import Transport
from rocketq.producing.attempts.send_hooks import SendAttempt
from rocketq.producing.staged_send import participants, rows_by_topic
from tests.client.aio.asyncio_support import WAIT_MS, WAIT_S, run, stored
from tests.support.small_cluster import TOPIC, SmallCluster
from tests.support.small_server import Answer, Asked, SmallServer


class Requests:
    """A hook that notes how many messages each request had, and holds requests back until it is told."""

    def __init__(self, held: bool = False) -> None:
        self.sizes: list[int] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        if not held:
            self.go_on.set()

    def before_attempt(self, attempt: SendAttempt) -> None:
        self.sizes.append(attempt.messages)
        self.begun.set()
        assert self.go_on.wait(WAIT_S)

    def after_attempt(self, attempt: SendAttempt, elapsed_ms: int, error: RocketqError | None) -> None:
        """Nothing."""


def test_a_message_is_stored_with_all_that_was_said_of_it(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=2)
        async with client.producer() as producer:
            sent = await producer.send(topic, "hällo", key="k", tag="paid", properties={"a": "1"})
            ordered = await producer.send(topic, b"o", ordering_key="c")
            again = await producer.send(topic, b"p", ordering_key="c")
            alone = await producer.send(topic, b"q", timeout_ms=30_000)
        assert sent.unique_id is not None
        found = await client.query.by_id(sent.message_id)
        assert (found.body, found.key, found.tag) == ("hällo".encode(), b"k", "paid")
        assert found.properties == {"a": "1", "UNIQ_KEY": sent.unique_id}
        assert (ordered.queue, ordered.offset + 1) == (again.queue, again.offset)
        assert (await client.query.by_id(alone.message_id)).body == b"q"

    run(cluster, work)


def test_what_is_sent_in_one_turn_of_the_loop_leaves_together(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    requests = Requests()

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=2)
        producer = client.producer(linger_ms=60_000)
        producer.add_hook(requests)
        results = await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(200)))
        assert len({result.message_id for result in results}) == 200

    run(cluster, work)
    assert requests.sizes == [200]
    assert sorted(int(message.body) for message in stored(mq, topic, 200)) == list(range(200))


def test_the_messages_of_a_key_keep_the_order_of_their_submits(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=4)
        async with client.producer(batch_messages=3, linger_ms=1) as producer:

            async def submit(number: int) -> None:
                await (await producer.submit(topic, b"%d" % number, ordering_key=b"%d" % (number % 5)))

            # The route is not known yet: the first ones wait for it, and nobody passes them.
            await asyncio.gather(*(submit(number) for number in range(300)))

    run(cluster, work)
    by_key: dict[int, list[int]] = {}
    for message in stored(mq, topic, 300):
        by_key.setdefault(int(message.body) % 5, []).append(int(message.body))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert len(by_key) == 5


def test_a_future_can_be_awaited_asked_and_called_back(cluster: LocalCluster, topic: str) -> None:
    called: list[str] = []

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        producer = client.producer(linger_ms=60_000)
        future = await producer.submit(topic, b"a")
        assert not future.done()
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        future.add_done_callback(lambda known: called.append(known.result().message_id))
        await producer.flush()
        result = await future
        assert result == await future == future.result()
        assert future.exception() is None
        assert future.done()
        assert called == [result.message_id]

    run(cluster, work)


def test_a_submit_waits_for_room_and_others_keep_their_turn(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    requests = Requests(held=True)

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=1, brokers=["broker-a"])
        size = len(b"000") + 192
        producer = client.producer(
            buffer_bytes=2 * size, batch_bytes=size, batch_messages=1, timeout_ms=WAIT_S * 1000
        )
        producer.add_hook(requests)
        await producer.submit(topic, b"000", queue=0)
        await producer.submit(topic, b"001", queue=0)
        waiting = [asyncio.create_task(producer.submit(topic, b"%03d" % n, queue=0)) for n in range(2, 30)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting), "the buffer is full"
        waiting.pop().cancel()
        requests.go_on.set()
        for task in waiting:
            await (await task)

    run(cluster, work)
    assert [int(message.body) for message in stored(mq, topic, 29)] == list(range(29))
    assert sum(each.total for each in mq.describe_topic(topic).values()) == 29, (
        "the cancelled one is not sent"
    )


def test_a_submit_that_finds_room_does_not_pass_one_that_waits_for_it(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    requests = Requests(held=True)

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=1, brokers=["broker-a"])
        size = len(b"0") + 192
        producer = client.producer(
            buffer_bytes=2 * size, batch_bytes=size, batch_messages=1, timeout_ms=WAIT_S * 1000
        )
        producer.add_hook(requests)
        before = [await producer.submit(topic, body, queue=0) for body in (b"0", b"1")]
        waits = asyncio.create_task(producer.submit(topic, b"2", queue=0))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waits.done(), "the buffer is full"
        requests.go_on.set()
        while not all(future.done() for future in before):
            # The loop stands still meanwhile, so the task that waits cannot take the room.
            threading.Event().wait(0.001)
        passes = await producer.submit(topic, b"3", queue=0)
        assert (await (await waits)).offset < (await passes).offset

    run(cluster, work)
    assert [message.body for message in stored(mq, topic, 4)] == [b"0", b"1", b"2", b"3"]


def test_a_submit_that_finds_the_route_does_not_pass_one_that_waited_for_it(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    tasks: list[asyncio.Task[None]] = []

    async def work(client: AsyncClient) -> None:
        producer = client.producer()

        async def submit(number: int) -> None:
            await (await producer.submit(topic, b"%d" % number, ordering_key="k"))

        # One begins in each turn of the loop: also in those between the route and the first one's submit.
        while not (tasks and tasks[0].done()):
            tasks.append(asyncio.create_task(submit(len(tasks))))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    run(cluster, work)
    found = [int(message.body) for message in stored(mq, topic, len(tasks))]
    assert found == list(range(len(tasks)))


def test_a_route_that_does_not_come_holds_only_its_own_topic() -> None:
    asked, answer = threading.Event(), threading.Event()

    async def work(nameserver: str) -> None:
        async with AsyncClient(nameserver) as client:
            producer = client.producer(retries=0)
            slow = asyncio.create_task(producer.submit("slow", b"a", ordering_key="k"))
            await asyncio.to_thread(asked.wait)
            await (await producer.submit(TOPIC, b"b", ordering_key="k"))
            await producer.send(TOPIC, b"c")
            assert not slow.done()
            answer.set()
            with pytest.raises(NameServersUnreachable):
                await slow

    with SmallCluster() as small, Transport() as transport:

        def respond(request: Asked) -> Answer:
            if request.path.endswith("/slow"):
                asked.set()
                answer.wait()
                return Answer(hang_up=True)
            found = transport.call("GET", small.nameserver, request.path, query=request.query)
            return Answer(body=bytes(found.body))

        with SmallServer(respond) as front:
            asyncio.run(work(front.address))


def test_a_buffer_that_stays_full_is_an_error_that_says_so(cluster: LocalCluster, topic: str) -> None:
    requests = Requests(held=True)

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        producer = client.producer(buffer_bytes=250, batch_bytes=100, timeout_ms=100)
        producer.add_hook(requests)
        first = await producer.submit(topic, b"a")
        with pytest.raises(SendFailed, match="no place for it in the send buffer of 250 bytes") as failed:
            await producer.submit(topic, b"b")
        assert failed.value.facts["may_be_stored"] is False
        with pytest.raises(TooLarge):
            await producer.submit(topic, b"c" * 300)
        requests.go_on.set()
        # Its time may be over as well.
        await asyncio.gather(first, return_exceptions=True)

    run(cluster, work)


def test_a_cancelled_send_takes_its_message_back_if_it_has_not_left(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    requests = Requests(held=True)

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=1, brokers=["broker-a"])
        producer = client.producer(batch_messages=1, sender_threads=1, timeout_ms=WAIT_S * 1000)
        producer.add_hook(requests)
        under_way = asyncio.create_task(producer.send(topic, b"under way"))
        await asyncio.to_thread(requests.begun.wait)
        behind = asyncio.create_task(producer.send(topic, b"behind"))
        kept = asyncio.create_task(producer.send(topic, b"kept"))
        await asyncio.sleep(0)
        for task in (under_way, behind):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        requests.go_on.set()
        await kept

    run(cluster, work)
    assert [message.body for message in stored(mq, topic, 2)] == [b"under way", b"kept"]


def test_a_cancelled_future_is_not_sent_and_its_await_says_so(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        async with client.producer(linger_ms=60_000) as producer:
            future, kept = await producer.submit(topic, b"a"), await producer.submit(topic, b"b")
            assert future.cancel()
            assert future.cancelled()
            with pytest.raises(asyncio.CancelledError):
                await future
            waiter = asyncio.ensure_future(kept)
            await asyncio.sleep(0)
            waiter.cancel()
            # To give up waiting does not cancel the message.
            assert not kept.cancelled()

    run(cluster, work)
    assert [message.body for message in stored(mq, topic, 1)] == [b"b"]


def test_closing_sends_what_waits_and_then_refuses(cluster: LocalCluster, mq: Client, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        producer = client.producer(linger_ms=60_000)
        futures = [await producer.submit(topic, b"%d" % number) for number in range(1_000)]
        await producer.close()
        assert all(future.done() for future in futures)
        assert [await future for future in futures][-1].message_id
        for call in (producer.send, producer.submit, producer.send_oneway):
            with pytest.raises(Closed):
                await call(topic, b"late")

    run(cluster, work)
    assert len(stored(mq, topic, 1_000)) == 1_000


def test_the_client_closes_its_producers_and_sends_what_waits(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        await client.producer(linger_ms=60_000).submit(topic, b"a")

    run(cluster, work)
    assert [message.body for message in stored(mq, topic, 1)] == [b"a"]


def test_a_message_that_a_broker_refuses_does_not_fail_those_sent_with_it(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, message_bytes_max=1_000)
        producer = client.producer(linger_ms=60_000)
        bodies = [b"a", b"x" * 5_000, b"b"]
        results = await asyncio.gather(
            *(producer.send(topic, body) for body in bodies), return_exceptions=True
        )
        assert isinstance(results[1], TooLarge)
        assert [type(result).__name__ for result in (results[0], results[2])] == ["SendResult", "SendResult"]

    run(cluster, work)
    assert sorted(message.body for message in stored(mq, topic, 2)) == [b"a", b"b"]


def test_what_is_wrong_with_a_message_is_raised_at_once(cluster: LocalCluster, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        producer = client.producer(auto_create_topics=False)
        for call in (producer.send, producer.submit, producer.send_oneway):
            with pytest.raises(InvalidMessage):
                await call(topic, b"a", tag="A|B")
        with pytest.raises(RouteNotFound):
            await producer.send(topic, b"a")
        with pytest.raises(RouteNotFound):
            await producer.submit(topic, b"a", ordering_key="k")

    run(cluster, work)


def test_a_send_that_failed_names_the_message_in_an_error_of_its_own() -> None:
    async def work(nameserver: str) -> None:
        async with AsyncClient(nameserver) as client:
            producer = client.producer(retries=0, timeout_ms=WAIT_MS)
            first, second = await asyncio.gather(
                producer.send(TOPIC, b"a"), producer.send(TOPIC, b"b"), return_exceptions=True
            )
        assert isinstance(first, SendFailed)
        assert isinstance(second, SendFailed)
        assert first is not second
        assert len(first.facts["unique_id"]) == len(second.facts["unique_id"]) == 36
        assert first.facts["unique_id"] != second.facts["unique_id"]

    with SmallCluster() as small:
        for broker in small.brokers:
            broker.instead = lambda: Answer(hang_up=True)
        asyncio.run(work(small.nameserver))


def test_one_way_messages_arrive_and_many_of_them_wait_for_their_turn(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=1, brokers=["broker-a"])
        producer = client.producer()
        # More than may wait for a thread.
        await asyncio.gather(*(producer.send_oneway(topic, b"%d" % n) for n in range(1_100)))
        found = await asyncio.to_thread(stored, mq, topic, 1_100)
        assert sorted(int(message.body) for message in found) == list(range(1_100))
        assert producer.oneway_lost == 0

    run(cluster, work)


def test_batches_are_sent_and_gathered_as_by_the_other_client(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        producer: AsyncProducer = client.producer()
        (sent,) = await producer.send_batch(topic, [Message(b"a"), Message(b"b")], queue=None)
        assert sent.count == 2
        async with producer.batch_sender() as sender:
            await sender.add(topic, [Message(b"c")])
            await sender.add(topic, [Message(b"d")])
            assert sum(result.count for result in await sender.finish()) == 2
        async with producer.batch_sender() as sender:
            await sender.add(topic, [Message(b"dropped: not finished")])

    run(cluster, work)
    assert sorted(message.body for message in stored(mq, topic, 4)) == [b"a", b"b", b"c", b"d"]


def test_a_stage_is_committed_by_an_asynchronous_sink(cluster: LocalCluster, mq: Client, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        sink = client.sink(topic)
        assert await sink.begin("run") is None
        staged = await client.producer().stage_batch(sink.stage(0, "run"), topic, [Message(b"a")])
        await sink.commit(0, "run", participants(staged), rows=rows_by_topic(staged))
        assert (await sink.describe()).decided == 0

    run(cluster, work)
    assert [message.body for message in stored(mq, topic, 1)] == [b"a"]
