"""Transactions from asyncio: blocks, decisions, checks by coroutines, and cancelled tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from rocketq import (
    AsyncClient,
    AsyncTransactionProducer,
    Client,
    HalfMessage,
    LocalCluster,
    TransactionMisused,
    TransactionState,
)
from rocketq.net.transaction_api import TransactionApi
from rocketq.net.transport import Transport
from rocketq.producing.transactions.transactions import TransactionSteps
from tests.client.aio.asyncio_support import run, stored

COMMIT, UNKNOWN = TransactionState.COMMIT, TransactionState.UNKNOWN
QUICK = ("--transaction-timeout-ms", "50", "--transaction-check-interval-ms", "50")


@pytest.fixture(scope="module")
def quick() -> Iterator[LocalCluster]:
    """A broker that checks transactions soon and often."""
    with LocalCluster(brokers=1, broker_arguments=QUICK) as running:
        yield running


def bodies(mq: Client, topic: str) -> list[bytes]:
    """All messages of a topic that can be seen now, sorted."""
    total = sum(each.total for each in mq.describe_topic(topic).values())
    return sorted(message.body for message in stored(mq, topic, total))


def undecided(mq: Client, topic: str) -> int:
    """The number of open transactions of the group that `transactions` makes."""
    with Transport() as transport:
        apis = [
            TransactionApi(transport, live.identity.broker, live.identity.address)
            for live in mq.cluster().brokers
        ]
        return sum(len(api.transactions(group=f"group-{topic}").transactions) for api in apis)


def transactions(client: AsyncClient, topic: str) -> AsyncTransactionProducer:
    return client.transactions(f"group-{topic}", check=lambda message: UNKNOWN)


def test_a_block_commits_at_its_end_and_rolls_back_on_an_exception(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=2)
        async with transactions(client, topic) as tp:

            async def one(body: str) -> None:
                async with tp.transaction(topic, body) as t:
                    await asyncio.sleep(0)
                    assert t.id

            async def fail() -> None:
                async with tp.transaction(topic, "c"):
                    raise ZeroDivisionError

            async with tp.transaction(topic, "a") as t:
                await t.send(topic, "b")
            assert t.state is COMMIT
            with pytest.raises(ZeroDivisionError):
                await fail()
            await asyncio.gather(one("d"), one("e"))
            async with tp.transaction(topic, "f") as t:
                await t.commit()
                assert t.state is COMMIT
            async with tp.transaction(topic, "g") as t:
                await t.rollback()
        assert tp.is_closed

    run(cluster, work)
    assert bodies(mq, topic) == [b"a", b"b", b"d", b"e", b"f"]


def test_what_is_no_transaction_is_refused(cluster: LocalCluster, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        with pytest.raises(TransactionMisused, match="check"):
            client.transactions("orders-tx")
        tp = transactions(client, topic)
        with pytest.raises(TransactionMisused, match="delayed"):
            tp.transaction(topic, "a", delay="10s")
        async with tp.transaction(topic, "a") as t:
            with pytest.raises(TransactionMisused, match="in a transaction"):
                await tp.transaction(topic, "b").__aenter__()
        with pytest.raises(TransactionMisused, match="has ended"):
            await t.send(topic, "late")

    run(cluster, work)


def test_a_task_that_is_cancelled_in_its_block_rolls_back(
    cluster: LocalCluster, mq: Client, topic: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        tp = transactions(client, topic)
        begun = asyncio.Event()

        async def wait_in_a_block() -> None:
            async with tp.transaction(topic, "a"):
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(wait_in_a_block())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cluster, work)
    assert bodies(mq, topic) == []
    assert undecided(mq, topic) == 0


def test_a_task_that_is_cancelled_while_its_block_begins_rolls_back(
    cluster: LocalCluster, mq: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, rolled_back = threading.Event(), threading.Event(), threading.Event()

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic)
        tp = transactions(client, topic)
        task = asyncio.create_task(tp.transaction(topic, "a").__aenter__())
        await asyncio.to_thread(entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert undecided(mq, topic) == 1
        go_on.set()
        await asyncio.to_thread(rolled_back.wait)

    begin, end = vars(TransactionSteps)["_begin"], vars(TransactionSteps)["_end_block"]

    def slow_begin(self: TransactionSteps) -> None:
        begin(self)
        entered.set()
        go_on.wait()

    def told_end(self: TransactionSteps, error: BaseException | None) -> None:
        end(self, error)
        assert self.state is TransactionState.ROLLBACK
        rolled_back.set()

    monkeypatch.setattr(TransactionSteps, "_begin", slow_begin)
    monkeypatch.setattr(TransactionSteps, "_end_block", told_end)
    run(cluster, work)
    assert undecided(mq, topic) == 0


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
def test_a_check_may_be_a_coroutine_function_or_a_plain_one(
    quick: LocalCluster, topic: str, kind: str
) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, queues=1)
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        async def check(message: HalfMessage) -> TransactionState:
            assert asyncio.get_running_loop() is loop
            asked.set()
            return COMMIT

        def plain_check(message: HalfMessage) -> TransactionState:
            loop.call_soon_threadsafe(asked.set)
            return COMMIT

        chosen = check if kind == "coroutine" else plain_check
        async with client.transactions(f"g-{topic}", check=chosen) as tp:
            async with tp.transaction(topic, "order") as t:
                t.leave_to_check()
            await asked.wait()
            async with client.pull_consumer(topic, start="earliest") as consumer:
                (message,) = await consumer.poll(timeout_ms=60_000)
                assert message.body == b"order"

    run(quick, work)
