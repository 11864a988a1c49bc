"""Histories of sends from asyncio: submits, sends, cancellations and flushes, drawn by hypothesis."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq import AsyncClient, AsyncProducer, AsyncSendFuture, SendResult
from tests.support.small_cluster import TOPIC, SmallCluster

#: What a step does, with how many turns of the loop pass before the next.
KINDS = st.sampled_from(["send", "submit", "keyed", "cancel", "take back", "flush"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 3)), max_size=40)


@dataclass
class History:
    """What was said to be stored, and what must not be."""

    stored: set[bytes] = field(default_factory=set)
    absent: set[bytes] = field(default_factory=set)
    tasks: list[tuple[bytes, asyncio.Task[SendResult]]] = field(default_factory=list)
    futures: list[tuple[bytes, AsyncSendFuture]] = field(default_factory=list)


async def step(producer: AsyncProducer, history: History, kind: str, number: int) -> None:
    body = b"%d" % number
    match kind:
        case "send":
            history.tasks.append((body, asyncio.create_task(producer.send(TOPIC, body))))
        case "submit":
            history.futures.append((body, await producer.submit(TOPIC, body)))
        case "keyed":
            history.futures.append((body, await producer.submit(TOPIC, body, ordering_key=b"k")))
        case "cancel" if history.tasks:
            history.tasks[-1][1].cancel()
        case "take back" if history.futures:
            body, future = history.futures[-1]
            if future.cancel():
                history.absent.add(body)
        case "flush":
            await producer.flush()


async def run(nameserver: str, steps: list[tuple[str, int]]) -> History:
    history = History()
    async with AsyncClient(nameserver) as client:
        producer = client.producer(batch_messages=3, linger_ms=1, sender_threads=2)
        for number, (kind, turns) in enumerate(steps):
            await step(producer, history, kind, number)
            for _ in range(turns):
                await asyncio.sleep(0)
        # A send that has not begun would find the producer closed.
        await asyncio.sleep(0)
        await producer.close()
        for body, future in history.futures:
            assert future.done()
            if body not in history.absent:
                assert (await future).count == 1
                history.stored.add(body)
        for body, task in history.tasks:
            if (await asyncio.wait([task]))[0] and not task.cancelled():
                assert task.result().count == 1
                history.stored.add(body)
    return history


@settings(max_examples=25)
@given(STEPS)
def test_what_is_answered_is_stored_once_and_what_was_taken_back_is_not(steps: list[tuple[str, int]]) -> None:
    with SmallCluster(brokers=1) as small:
        history = asyncio.run(run(small.nameserver, steps))
        found = small.brokers[0].bodies()
        assert len(found) == len(set(found))
        assert history.stored <= set(found)
        assert not history.absent & set(found)
        keyed = [b"%d" % number for number, (kind, _) in enumerate(steps) if kind == "keyed"]
        assert [body for body in found if body in keyed] == [body for body in keyed if body in found]
