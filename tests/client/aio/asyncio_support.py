"""What tests of the asynchronous client share: running work on a loop, and reading what was stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rocketq import AsyncClient, AsyncConsumedMessage, AsyncConsumer, Client, LocalCluster, StoredMessage

T = TypeVar("T")
WAIT_S = 60
WAIT_MS = WAIT_S * 1_000


def run(cluster: LocalCluster, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Run work on an event loop of its own, with a client that is closed behind it."""

    async def main() -> T:
        async with asyncio.timeout(2 * WAIT_S), AsyncClient(cluster.nameservers) as mq:
            return await work(mq)

    return asyncio.run(main())


def stored(mq: Client, topic: str, count: int) -> list[StoredMessage]:
    """Read the first `count` messages of a topic."""
    found: list[StoredMessage] = []
    with mq.pull_consumer(topic, start="earliest") as consumer:
        while len(found) < count:
            messages = consumer.poll(timeout_ms=WAIT_MS)
            assert messages
            found += messages
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Look at a condition, in turn with the other tasks, until it holds; `run` ends what takes too long."""
    while not condition():
        await asyncio.sleep(0.005)


async def take(consumer: AsyncConsumer, count: int) -> list[AsyncConsumedMessage]:
    """Poll until `count` messages have come."""
    found: list[AsyncConsumedMessage] = []
    while len(found) < count:
        messages = await consumer.poll(count - len(found), WAIT_MS)
        assert messages, f"only {len(found)} of {count} came"
        found += messages
    return found


def numbers(messages: list[AsyncConsumedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)
