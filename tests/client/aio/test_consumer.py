"""Consuming from asyncio: loops, polls, Arrow, progress, and what becomes of messages of a cancelled task."""

from __future__ import annotations

import asyncio

import pytest

from rocketq import (
    AsyncClient,
    AsyncConsumedMessage,
    AsyncConsumer,
    Client,
    Closed,
    InvalidConfiguration,
    LocalCluster,
    Tag,
)
from rocketq.protocol.documents.groups import SESSION_TIMEOUT_MS_MIN
from tests.client.aio.asyncio_support import WAIT_MS, numbers, run, take, until
from tests.client.consuming.groups_support import fill, one_queue
from tests.support.conditions import wait_until


async def rest(client: AsyncClient, group: str, topic: str, count: int) -> list[int]:
    """The numbers of the messages that come to the next member of a group."""
    async with client.consumer(group, [topic]) as consumer:
        return numbers(await take(consumer, count))


async def read(consumer: AsyncConsumer, count: int) -> list[AsyncConsumedMessage]:
    """Read so many messages in a loop, acknowledging the last one, and leave it."""
    found: list[AsyncConsumedMessage] = []
    async for message in consumer:
        found.append(message)
        if len(found) == count:
            await message.ack()
            break
    return found


def test_a_loop_hands_out_every_message_once_and_acknowledges_it(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    fill(mq, topic, 3_000)

    async def work(client: AsyncClient) -> None:
        async with client.consumer("a-loop", [topic]) as consumer:
            messages = await read(consumer, 3_000)
            assert numbers(messages) == list(range(3_000))
            assert sum(consumer.lag().values()) == 0
            assert "attempt=1" in repr(messages[0])
        async with client.consumer("a-loop", [topic]) as consumer:
            assert sum(consumer.lag().values()) == 0, "the offsets are stored"

    run(cluster, work)


def test_messages_that_come_later_wake_a_loop_that_waits(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    fill(mq, topic, 0)

    async def work(client: AsyncClient) -> None:
        async with client.consumer("a-later", [topic]) as consumer, client.producer() as producer:
            waiting = asyncio.create_task(read(consumer, 2))
            for body in (b"0", b"1"):
                await producer.send(topic, body)
            assert numbers(await waiting) == [0, 1]

    run(cluster, work)


def test_a_loop_that_is_left_does_not_acknowledge_its_last_message(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 10)

    async def work(client: AsyncClient) -> None:
        async with client.consumer("a-left", [topic]) as consumer:
            async for message in consumer:
                if int(message.body) == 4:
                    break
            assert next(iter(consumer.owned().values())) == 4
            # What was behind it is handed out at once, it itself later: it counts as failed.
            assert numbers(await take(consumer, 5)) == [5, 6, 7, 8, 9]
            retry = "%RETRY%a-left"
            await asyncio.to_thread(wait_until, lambda: retry in mq.topics())
            await asyncio.to_thread(wait_until, lambda: len(list(mq.timers.list(retry))) == 1)
            [waiting] = [each async for each in client.timers.list(retry)]
            assert (waiting.properties or {})["ORIGIN_MESSAGE_ID"].endswith(":4")

    run(cluster, work)


def test_a_task_that_is_cancelled_loses_no_message(cluster: LocalCluster, mq: Client, topic: str) -> None:
    one_queue(mq, topic, 6)

    async def work(client: AsyncClient) -> None:
        handled: list[int] = []
        reached = asyncio.Event()

        async def handle(consumer: AsyncConsumer) -> None:
            async for message in consumer:
                handled.append(int(message.body))
                if len(handled) == 3:
                    reached.set()
                    await asyncio.Event().wait()

        async with client.consumer("a-cancel", [topic]) as consumer:
            task = asyncio.create_task(handle(consumer))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # Cancelled while it handles a message, and then while it waits for one that is not there.
            assert numbers(await take(consumer, 3)) == [3, 4, 5]
            for waiting in (consumer.poll(timeout_ms=WAIT_MS), read(consumer, 1)):
                task = asyncio.create_task(waiting)  # type: ignore[arg-type]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await client.producer().send(topic, b"6", queue=0)
            assert numbers(await take(consumer, 1)) == [6]
        assert handled == [0, 1, 2]

    run(cluster, work)


def test_with_manual_acknowledgement_only_ack_and_commit_count(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 9)

    async def work(client: AsyncClient) -> None:
        async with client.consumer("a-manual", [topic], ack="manual") as consumer:
            messages = await take(consumer, 6)
            await messages[0].ack()
            await consumer.commit(messages[1])
            await consumer.commit(messages[2:4])
            (queue,) = consumer.owned()
            assert consumer.owned() == {queue: 4}
        async with client.consumer("a-manual", [topic], ack="manual") as consumer:
            assert numbers(await take(consumer, 5)) == [4, 5, 6, 7, 8]
            await consumer.commit()
            assert sum(consumer.lag().values()) == 0

    run(cluster, work)


def test_a_message_that_is_refused_comes_again(cluster: LocalCluster, mq: Client, topic: str) -> None:
    one_queue(mq, topic, 3)

    async def work(client: AsyncClient) -> None:
        async with client.consumer("a-nack", [topic], ack="manual") as consumer:
            first, *others = await take(consumer, 3)
            await first.nack("1ms", reason="no stock")
            for message in others:
                await message.ack()
            (again,) = await consumer.poll(timeout_ms=WAIT_MS)
            assert (again.body, again.attempt) == (b"0", 2)
            await again.ack()
            await consumer.commit([])
            assert sum(consumer.lag().values()) == 0

    run(cluster, work)


def test_arrow_batches_are_acknowledged_by_the_next_and_come_again_when_left(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 10)

    async def work(client: AsyncClient) -> None:
        async with client.consumer("a-arrow", [topic]) as consumer:
            taken: list[int] = []
            async for batch in consumer.arrow(max_rows=4, timeout_ms=WAIT_MS):
                taken.append(batch.num_rows)
                if len(taken) == 2:
                    break
            assert taken == [4, 4]
            assert next(iter(consumer.owned().values())) == 4
            async for batch in consumer.arrow(timeout_ms=WAIT_MS):
                assert batch.column("offset").to_pylist() == list(range(4, 10))
                await consumer.commit(batch)
                break
            async for batch in consumer.arrow(timeout_ms=0):
                assert batch.num_rows == 0
                break
        async with client.consumer("a-arrow", [topic]) as consumer:
            assert sum(consumer.lag().values()) == 0

    run(cluster, work)


def test_a_poll_is_acknowledged_by_the_next_and_by_the_end_of_the_block(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 10)

    async def work(client: AsyncClient) -> None:
        async def fail_with_four() -> None:
            async with client.consumer("a-poll", [topic]) as consumer:
                assert len(await consumer.poll(4, WAIT_MS)) == 4
                assert len(await consumer.poll(4, WAIT_MS)) == 4
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_with_four()
        async with client.consumer("a-poll", [topic]) as consumer:
            assert numbers(await take(consumer, 6)) == [4, 5, 6, 7, 8, 9]
        async with client.consumer("a-poll", [topic]) as consumer:
            assert await consumer.poll(timeout_ms=0) == []
            with pytest.raises(InvalidConfiguration):
                await consumer.poll(0)

    run(cluster, work)


def test_queues_are_sought_paused_and_resumed(cluster: LocalCluster, mq: Client, topic: str) -> None:
    one_queue(mq, topic, 4)

    async def work(client: AsyncClient) -> None:
        async with client.consumer("a-seek", [topic]) as consumer:
            await take(consumer, 4)
            (queue,) = consumer.owned()
            consumer.seek(queue, 2)
            consumer.pause(queue)
            assert await consumer.poll(timeout_ms=0) == []
            waiting = asyncio.create_task(take(consumer, 2))
            await asyncio.sleep(0)
            consumer.resume(queue)
            assert numbers(await waiting) == [2, 3]
            seen: list[int] = []
            consumer.seek(queue, 0)
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 1:
                    consumer.pause(queue)
                    asyncio.get_running_loop().call_soon(consumer.resume, queue)
                if len(seen) == 4:
                    break
            assert seen == [0, 1, 2, 3]

    run(cluster, work)


def test_closing_ends_the_loop_of_another_task_after_its_message(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 5)

    async def work(client: AsyncClient) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        handled: list[int] = []

        async def handle(consumer: AsyncConsumer) -> None:
            async for message in consumer:
                begun.set()
                await go_on.wait()
                handled.append(int(message.body))

        consumer = await client.consumer("a-close", [topic], hand_over_ms=WAIT_MS)
        task = asyncio.create_task(handle(consumer))
        await begun.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        await task
        assert handled == [0]
        assert consumer.is_closed
        with pytest.raises(Closed):
            await consumer.poll()
        assert await rest(client, "a-close", topic, 4) == [1, 2, 3, 4]

    run(cluster, work)


def test_messages_are_dead_letters_after_their_last_attempt(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 2)

    async def work(client: AsyncClient) -> None:
        letters = client.dead_letters("a-dead")
        async with client.consumer("a-dead", [topic], ack="manual", max_attempts=1) as consumer:
            for message in await take(consumer, 2):
                await message.nack(reason="no stock")
            await asyncio.to_thread(wait_until, lambda: sum(mq.dead_letters("a-dead").count().values()) == 2)
        assert [(each.body, each.reason) async for each in letters.list()] == [
            (b"0", "no stock"), (b"1", "no stock"),
        ]  # fmt: skip

    run(cluster, work)


def test_work_that_keeps_the_loop_busy_does_not_end_the_membership(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 3)

    def last_heard_ms(client_id: str) -> int:
        (member,) = [each for each in mq.groups.members("a-busy") if each.client_id == client_id]
        return member.last_heard_ms

    async def work(client: AsyncClient) -> None:
        async with client.consumer(
            "a-busy", [topic], heartbeat_ms=50, session_timeout_ms=SESSION_TIMEOUT_MS_MIN
        ) as consumer:
            # This blocks the loop, as it should not be: until the member was heard of several times.
            heard, before = 0, last_heard_ms(consumer.client_id)
            while heard < 3:
                now = last_heard_ms(consumer.client_id)
                heard += now < before
                before = now
            assert len(consumer.owned()) == 1
            assert numbers(await take(consumer, 3)) == [0, 1, 2]

    run(cluster, work)


def test_other_tasks_get_their_turn_while_there_is_a_backlog(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    fill(mq, topic, 20_000)

    async def work(client: AsyncClient) -> None:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        async with client.consumer("a-turns", [topic]) as consumer:
            await until(lambda: sum(consumer.lag().values()) == 20_000)
            before = turns
            await read(consumer, 20_000)
            assert turns - before >= 20_000 // 500
        counting.cancel()

    run(cluster, work)


def test_members_on_loops_and_threads_share_the_queues(cluster: LocalCluster, mq: Client, topic: str) -> None:
    fill(mq, topic, 0)

    async def work(client: AsyncClient) -> None:
        with mq.consumer("a-both", [topic]) as other:
            async with client.consumer("a-both", [topic]) as consumer:
                await until(lambda: len(consumer.owned()) == len(other.owned()) == 2)
            await until(lambda: len(other.owned()) == 4)

    run(cluster, work)


def test_a_filter_is_the_brokers_work(cluster: LocalCluster, mq: Client, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        producer = client.producer()
        await asyncio.gather(*(producer.send(topic, b"%d" % n, tag="ab"[n % 2]) for n in range(10)))
        async with client.consumer("a-filter", {topic: Tag("b")}) as consumer:
            assert numbers(await take(consumer, 5)) == [1, 3, 5, 7, 9]

    run(cluster, work)


def test_a_pull_consumer_reads_all_queues(cluster: LocalCluster, mq: Client, topic: str) -> None:
    fill(mq, topic, 100)

    async def work(client: AsyncClient) -> None:
        async with client.pull_consumer(topic, group="a-pull", start="earliest") as consumer:
            found: list[int] = []
            while len(found) < 100:
                found += [int(message.body) for message in await consumer.poll(30, WAIT_MS)]
            assert sorted(found) == list(range(100))
            assert sum(consumer.lag().values()) == 0
            await consumer.commit()
            waiting = asyncio.create_task(consumer.poll_arrow(timeout_ms=WAIT_MS))
            await client.producer().send(topic, b"100")
            assert (await waiting).column("body").to_pylist() == [b"100"]
            waiting = asyncio.create_task(consumer.poll_arrow(timeout_ms=WAIT_MS))
            await asyncio.sleep(0)
            await consumer.close()
            with pytest.raises(Closed):
                await waiting
        progress = await client.groups.progress("a-pull", topic)
        assert sum(each.lag or 0 for each in progress) == 1

    run(cluster, work)


def test_what_a_client_looks_up_comes_page_by_page(cluster: LocalCluster, mq: Client, topic: str) -> None:
    fill(mq, topic, 600)

    async def work(client: AsyncClient) -> None:
        found = [int(message.body) async for message in client.query.by_time(topic, 0)]
        assert sorted(found) == list(range(600))
        sent = await client.producer().send(topic, b"later", delay="1h")
        assert [message.timer_id async for message in client.timers.list(topic)] == [sent.timer_id]
        assert sent.timer_id is not None
        await client.timers.cancel(sent.timer_id)
        assert topic in await client.topics()
        assert (await client.route(topic)).topic == topic

    run(cluster, work)
