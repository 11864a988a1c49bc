"""The life of an asynchronous client: its loop, opening, closing, cancellation, and being forgotten."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocketq import (
    AsyncClient,
    AsyncConsumedMessage,
    Client,
    Closed,
    GroupNotFound,
    InvalidConfiguration,
    LocalCluster,
    RouteNotFound,
    WrongEventLoop,
)
from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.aio.home_loop import HomeLoop
from tests.client.aio.asyncio_support import WAIT_MS, numbers, run, take
from tests.client.consuming.groups_support import one_queue
from tests.support.conditions import wait_until


def members(mq: Client, group: str) -> int:
    try:
        return len(mq.groups.members(group))
    except GroupNotFound:
        return 0


def member_threads() -> int:
    return sum(thread.name.startswith("rocketq-member") for thread in threading.enumerate())


def uses(client: AsyncClient, topic: str) -> list[Callable[[], Awaitable[Any]]]:
    producer = client.producer()
    return [
        client.topics, client.groups.overviews, lambda: producer.send(topic, b"a"),
        lambda: producer.submit(topic, b"a"), lambda: producer.send_oneway(topic, b"a"),
        lambda: producer.send_batch(topic, []), client.close, client.__aenter__,
        client.consumer("g", [topic]).__aenter__, client.pull_consumer(topic, start="latest").__aenter__,
    ]  # fmt: skip


def test_a_client_used_in_another_loop_says_so(cluster: LocalCluster, topic: str) -> None:
    async def fail(use: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(WrongEventLoop, match="another event loop") as wrong:
            await use()
        assert "Make an AsyncClient for each event loop" in wrong.value.hint

    async def work(client: AsyncClient) -> None:
        for use in uses(client, topic):
            await asyncio.to_thread(asyncio.run, fail(use))

    run(cluster, work)


def test_a_consumer_and_a_future_used_in_another_loop_say_so(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 1)

    async def work(client: AsyncClient) -> None:
        future = await client.producer(linger_ms=60_000).submit(topic, b"a")
        async with client.consumer("w-other", [topic]) as consumer:

            async def fail() -> None:
                for use in (consumer.poll, consumer.commit, consumer.close):
                    with pytest.raises(WrongEventLoop):
                        await use()
                with pytest.raises(WrongEventLoop):
                    aiter(consumer)
                with pytest.raises(WrongEventLoop):
                    await future

            await asyncio.to_thread(asyncio.run, fail())
            assert numbers(await take(consumer, 1)) == [0]

    run(cluster, work)


def test_without_a_loop_a_client_says_so(cluster: LocalCluster) -> None:
    client = AsyncClient(cluster.nameservers)
    with pytest.raises(WrongEventLoop, match="no event loop is running"):
        client.producer()
    coroutine = client.topics()
    with pytest.raises(WrongEventLoop, match="no event loop is running"):
        coroutine.send(None)


def test_two_loops_have_a_client_each(cluster: LocalCluster, mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    ready = threading.Barrier(2)

    async def work(client: AsyncClient) -> None:
        producer = client.producer()
        await producer.send(topic, b"first")
        await asyncio.to_thread(ready.wait)
        await asyncio.gather(*(producer.send(topic, b"x") for _ in range(100)))

    threads = [threading.Thread(target=run, args=(cluster, work)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mq.describe_topic(topic)["broker-a"].total == 202


def test_a_client_may_be_made_before_its_loop(cluster: LocalCluster) -> None:
    client = AsyncClient(cluster.nameservers)

    async def work() -> None:
        async with client:
            assert await client.cluster()
        with pytest.raises(Closed):
            await client.topics()
        with pytest.raises(Closed):
            await client.__aenter__()
        with pytest.raises(Closed):
            client.producer()
        await client.close()

    asyncio.run(work())


def test_what_could_not_be_opened_leaves_nothing(cluster: LocalCluster, mq: Client, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        threads = member_threads()
        with pytest.raises(RouteNotFound):
            await client.consumer("w-none", ["absent"])
        with pytest.raises(RouteNotFound):
            await client.pull_consumer("absent", start="latest").__aenter__()
        assert member_threads() == threads
        await client.create_topic(topic)
        opening = client.consumer("w-twice", [topic])
        consumer = await opening
        with pytest.raises(InvalidConfiguration, match="opened before"):
            await opening
        await consumer.close()

    run(cluster, work)


def test_a_member_whose_joining_is_cancelled_leaves_the_group(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 1)

    async def work(client: AsyncClient) -> None:
        joining = asyncio.create_task(client.consumer("w-cancel", [topic]).__aenter__())
        while not await asyncio.to_thread(members, mq, "w-cancel"):
            assert not joining.done()
        joining.cancel()
        await asyncio.wait([joining])
        if not joining.cancelled():
            await joining.result().close()
        await asyncio.to_thread(wait_until, lambda: members(mq, "w-cancel") == 0)

    run(cluster, work)


def test_a_call_that_is_cancelled_is_undone_or_never_made() -> None:
    async def work() -> None:
        home = HomeLoop("The test")
        calls = BlockingCalls(home)
        begun, go_on, undone = threading.Event(), threading.Event(), threading.Event()

        def make() -> str:
            begun.set()
            go_on.wait()
            return "made"

        def undo(made: str) -> None:
            assert made == "made"
            undone.set()

        task = asyncio.create_task(calls.run(make, undo=undo))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not undone.is_set()
        go_on.set()
        await asyncio.to_thread(undone.wait)

        undone.clear()
        go_on.clear()
        task = asyncio.create_task(calls.run(make, undo=undo))
        await asyncio.sleep(0)
        (future,) = calls.running
        go_on.set()
        # The answer is there, and the task is cancelled before the loop tells it.
        future.result(timeout=60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(undone.wait)
        await calls.close()
        with pytest.raises(Closed):
            await calls.run(make)

    asyncio.run(work())


def test_an_undo_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        calls = BlockingCalls(HomeLoop("The test"))
        begun, go_on = threading.Event(), threading.Event()

        def make() -> None:
            begun.set()
            go_on.wait()

        def undo(_: None) -> None:
            raise ArithmeticError("undo")

        task = asyncio.create_task(calls.run(make, undo=undo))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.wait([task])
        go_on.set()
        await calls.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert "ArithmeticError: undo" in caplog.text


def drop(made: object) -> None:
    """Forget an object; the caller must not hold it."""
    del made
    gc.collect()


def test_what_was_never_opened_is_warned_of(cluster: LocalCluster, topic: str) -> None:
    async def on_order(message: AsyncConsumedMessage) -> None:
        """Handle nothing."""

    async def work(client: AsyncClient) -> None:
        for make in (
            lambda: client.consumer("forgotten", [topic]),
            lambda: client.listener(topic, on_order, group="forgotten"),
        ):
            with pytest.warns(RuntimeWarning, match="forgotten was never opened"):
                drop(make())

    run(cluster, work)


def test_a_client_that_is_forgotten_is_warned_of_and_closed(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 3)

    async def forget() -> None:
        client = AsyncClient(cluster.nameservers)
        consumer = await client.consumer("w-forgotten", [topic], ack="manual")
        for message in await take(consumer, 2):
            await message.ack()

    with pytest.warns(ResourceWarning, match="was not closed"):
        drop(asyncio.run(forget()))
    wait_until(lambda: members(mq, "w-forgotten") == 0)
    assert [each.committed for each in mq.groups.progress("w-forgotten", topic)] == [2], "and has committed"


def test_a_client_that_was_closed_or_never_used_is_not_warned_of(cluster: LocalCluster) -> None:
    async def work() -> None:
        async with AsyncClient(cluster.nameservers) as client:
            await client.topics()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(work())
        AsyncClient(cluster.nameservers)
        gc.collect()


def test_a_close_that_is_cancelled_closes_all_the_same(cluster: LocalCluster, mq: Client, topic: str) -> None:
    one_queue(mq, topic, 1)

    async def work() -> None:
        client = AsyncClient(cluster.nameservers)
        await client.consumer("w-close", [topic])
        await client.producer(linger_ms=WAIT_MS).submit(topic, b"1")
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(work())
    wait_until(lambda: members(mq, "w-close") == 0)
    wait_until(lambda: sum(each.total for each in mq.describe_topic(topic).values()) == 2)
