"""Listeners of asyncio: tasks that await a coroutine function for each message of a group."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any

import pytest

from rocketq import (
    AsyncClient,
    AsyncConsumedMessage,
    Client,
    InvalidConfiguration,
    LocalCluster,
    MessageQueue,
)
from tests.client.aio.asyncio_support import WAIT_MS, numbers, run, take, until
from tests.client.consuming.groups_support import fill, one_queue
from tests.support.conditions import wait_until


def test_each_message_is_awaited_once_by_several_tasks_at_a_time(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    fill(mq, topic, 200)

    async def work(client: AsyncClient) -> None:
        seen: list[int] = []
        running: set[int] = set()
        together = 0

        @client.listener(topic, group="al-each", workers=4)
        async def handle(message: AsyncConsumedMessage) -> None:
            nonlocal together
            running.add(int(message.body))
            together = max(together, len(running))
            await asyncio.sleep(0.001)
            running.remove(int(message.body))
            seen.append(int(message.body))

        async with handle as listener:
            await until(lambda: len(seen) == 200)
            await until(lambda: sum(listener.lag().values()) == 0)
        assert sorted(seen) == list(range(200))
        assert 1 < together <= 4

    run(cluster, work)


def test_a_message_whose_function_does_not_return_is_told_of_and_tried_again(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 1)

    async def work(client: AsyncClient) -> None:
        end = asyncio.Event()

        async def handle(message: AsyncConsumedMessage) -> None:
            await end.wait()

        settings: dict[str, Any] = {"consume_timeout_ms": 50, "max_attempts": 1}
        async with client.listener(topic, handle, group=topic, **settings) as listener:
            await until(lambda: [late.offset for late in listener.overdue] == [0])
            await until(lambda: list(listener.owned().values()) == [1])
            assert listener.in_hand == (f"broker-a:{topic}:0:0",)
            end.set()
            await until(lambda: listener.overdue == listener.in_hand == ())

    run(cluster, work)
    assert [letter.reason for letter in mq.dead_letters(topic).list()] == ["TimeoutError: no return in 50 ms"]


def test_with_order_one_task_at_a_time_has_a_queue_and_a_failure_holds_it(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    fill(mq, topic, 40, queues=1)

    async def work(client: AsyncClient) -> None:
        handled: dict[MessageQueue, list[tuple[int, int]]] = defaultdict(list)

        async def handle(message: AsyncConsumedMessage) -> None:
            handled[message.queue].append((message.offset, message.attempt))
            await asyncio.sleep(0)
            if message.offset == 2 and message.attempt < 4:
                raise ArithmeticError

        async with client.listener(topic, handle, group="al-hold", ordered=True, suspend_ms=10) as listener:
            await until(lambda: sum(listener.lag().values()) == 0)
        for offsets in handled.values():
            behind = [(offset, 1) for offset in range(3, offsets[-1][0] + 1)]
            assert offsets == [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (2, 4), *behind]

    run(cluster, work)


def test_an_exception_is_logged_and_its_message_is_not_acknowledged(
    cluster: LocalCluster, mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one_queue(mq, topic, 5)

    async def work(client: AsyncClient) -> None:
        seen: list[int] = []

        async def handle(message: AsyncConsumedMessage) -> None:
            seen.append(int(message.body))
            if int(message.body) == 1:
                raise ArithmeticError("one")
            if int(message.body) == 2:
                # What the function awaits may be cancelled; the listener's task is not.
                inner = asyncio.ensure_future(asyncio.Event().wait())
                inner.cancel()
                await inner

        async with client.listener(topic, handle, group="al-fail", workers=1, max_attempts=1):
            await until(lambda: len(seen) == 5)
            await asyncio.to_thread(wait_until, lambda: sum(mq.dead_letters("al-fail").count().values()) == 2)
        reasons = {each.body: each.reason async for each in client.dead_letters("al-fail").list()}
        assert reasons == {b"1": "ArithmeticError: one", b"2": "CancelledError: "}

    with caplog.at_level(logging.ERROR, "rocketq.aio.consuming.listener"):
        run(cluster, work)
    assert "ArithmeticError: one" in caplog.text
    assert "CancelledError" in caplog.text


def test_closing_waits_for_the_function_and_begins_no_other_message(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    one_queue(mq, topic, 5)

    async def work(client: AsyncClient) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        handled: list[int] = []

        async def handle(message: AsyncConsumedMessage) -> None:
            begun.set()
            await go_on.wait()
            handled.append(int(message.body))

        listener = await client.listener(topic, handle, group="al-close", workers=1)
        await begun.wait()
        closing = asyncio.create_task(listener.close())
        await asyncio.sleep(0)
        go_on.set()
        assert await closing
        assert await listener.close(), "twice is no error"
        assert handled == [0]
        async with client.consumer("al-close", [topic]) as consumer:
            assert numbers(await take(consumer, 4)) == [1, 2, 3, 4]

    run(cluster, work)


def test_a_function_that_does_not_return_is_cancelled_and_its_message_comes_again(
    cluster: LocalCluster, mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one_queue(mq, topic, 2)

    async def work(client: AsyncClient) -> None:
        begun = asyncio.Event()
        cancelled: list[bytes] = []

        async def handle(message: AsyncConsumedMessage) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

        listener = await client.listener(topic, handle, group="al-stuck", workers=1)
        await begun.wait()
        assert not await listener.close(timeout_ms=1)
        assert cancelled == [b"0"]
        async with client.consumer("al-stuck", [topic]) as consumer:
            assert numbers(await take(consumer, 2)) == [0, 1]

    run(cluster, work)
    assert "are cancelled" in caplog.text


def test_a_function_cannot_close_its_own_listener(cluster: LocalCluster, mq: Client, topic: str) -> None:
    one_queue(mq, topic, 1)

    async def work(client: AsyncClient) -> None:
        refused: list[str] = []

        async def handle(message: AsyncConsumedMessage) -> None:
            try:
                await listener.close()
            except InvalidConfiguration as error:
                refused.append(str(error))

        listener = await client.listener(topic, handle, group="al-self")
        await until(lambda: bool(refused))
        assert "wait for itself" in refused[0]

    run(cluster, work)


def test_the_client_closes_its_listeners(cluster: LocalCluster, mq: Client, topic: str) -> None:
    one_queue(mq, topic, 1)
    handled: list[bytes] = []

    async def work(client: AsyncClient) -> None:
        begun = asyncio.Event()

        async def handle(message: AsyncConsumedMessage) -> None:
            begun.set()
            await asyncio.sleep(0)
            handled.append(message.body)

        await client.listener(topic, handle, group="al-client")
        await begun.wait()

    run(cluster, work)
    assert handled == [b"0"]
    assert [each.lag for each in mq.groups.progress("al-client", topic)] == [0]


def test_what_is_no_coroutine_function_is_refused(cluster: LocalCluster, topic: str) -> None:
    class Handler:
        async def __call__(self, message: AsyncConsumedMessage) -> None:
            """Handle nothing."""

    async def work(client: AsyncClient) -> None:
        wrong: list[Any] = [print, lambda message: message, "print"]
        for function in wrong:
            with pytest.raises(InvalidConfiguration, match="no coroutine function"):
                client.listener(topic, function, group="g")
        with pytest.raises(InvalidConfiguration, match="workers"):
            client.listener(topic, Handler(), group="g", workers=0)
        with pytest.raises(InvalidConfiguration, match="acknowledges a message when"):
            client.listener(topic, Handler(), group="g", ack="manual")
        await client.create_topic(topic)
        async with client.listener(topic, Handler(), group="al-handler"):
            assert WAIT_MS

    run(cluster, work)
