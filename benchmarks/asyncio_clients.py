"""What asyncio costs: each way to send and to consume, by a task against by a thread, in the same run.

    submit     messages are submitted one by one, and each has its receipt asked for at the end
    send       one message after the other, each awaited before the next: latency
    together   a thousand tasks send at once, against 16 threads that send one after the other: no like for
               like, so it has no target
    consume    a backlog is read as a member of a group, message by message
    arrow      the same backlog as Arrow batches

The broker is a process on this machine; asynchronous flush.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, Final

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report
from rocketq import AsyncClient, AsyncProducer, Client, LocalCluster, Producer

TARGET: Final = 0.7
TOPIC: Final = "bench"
BACKLOG: Final = "backlog"
QUEUES: Final = 4
#: Messages between two looks at the clock.
MESSAGES: Final = 10_000
#: Sends that are awaited together.
TOGETHER: Final = 1_000
THREADS: Final = 16

_groups = count()


# --- sending ----------------------------------------------------------------------


def submit(producer: Producer, bodies: list[bytes], seconds: float) -> float:
    futures = []
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        futures += [producer.submit(TOPIC, body) for body in bodies]
    for future in futures:
        future.result()
    return len(futures) / (time.perf_counter() - started)


async def submit_async(producer: AsyncProducer, bodies: list[bytes], seconds: float) -> float:
    futures = []
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        futures += [await producer.submit(TOPIC, body) for body in bodies]
    for future in futures:
        await future
    return len(futures) / (time.perf_counter() - started)


def send(producer: Producer, bodies: list[bytes], seconds: float) -> float:
    sent = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        producer.send(TOPIC, bodies[sent % MESSAGES])
        sent += 1
    return sent / (time.perf_counter() - started)


async def send_async(producer: AsyncProducer, bodies: list[bytes], seconds: float) -> float:
    sent = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        await producer.send(TOPIC, bodies[sent % MESSAGES])
        sent += 1
    return sent / (time.perf_counter() - started)


def together(producer: Producer, bodies: list[bytes], seconds: float) -> float:
    with ThreadPoolExecutor(THREADS) as threads:
        started = time.perf_counter()
        sent = sum(
            threads.map(
                lambda number: send(producer, bodies, seconds) * seconds, range(THREADS)
            )
        )  # fmt: skip
        return sent / (time.perf_counter() - started)


async def together_async(producer: AsyncProducer, bodies: list[bytes], seconds: float) -> float:
    sent = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        await asyncio.gather(*(producer.send(TOPIC, body) for body in bodies[:TOGETHER]))
        sent += TOGETHER
    return sent / (time.perf_counter() - started)


# --- consuming --------------------------------------------------------------------


def consume(mq: Client, messages: int) -> float:
    started = time.perf_counter()
    size = read = 0
    with mq.consumer(f"thread-{next(_groups)}", BACKLOG) as consumer:
        for message in consumer:
            size += len(message.body)
            read += 1
            if read == messages:
                break
    return messages / (time.perf_counter() - started)


async def consume_async(mq: AsyncClient, messages: int) -> float:
    started = time.perf_counter()
    size = read = 0
    async with mq.consumer(f"task-{next(_groups)}", BACKLOG) as consumer:
        async for message in consumer:
            size += len(message.body)
            read += 1
            if read == messages:
                break
    return messages / (time.perf_counter() - started)


def arrow(mq: Client, messages: int) -> float:
    started = time.perf_counter()
    read = 0
    with mq.consumer(f"thread-{next(_groups)}", BACKLOG) as consumer:
        for batch in consumer.arrow(50_000):
            read += batch.num_rows
            if read >= messages:
                break
    return messages / (time.perf_counter() - started)


async def arrow_async(mq: AsyncClient, messages: int) -> float:
    started = time.perf_counter()
    read = 0
    async with mq.consumer(f"task-{next(_groups)}", BACKLOG) as consumer:
        async for batch in consumer.arrow(50_000):
            read += batch.num_rows
            if read >= messages:
                break
    return messages / (time.perf_counter() - started)


# --- turns ------------------------------------------------------------------------


def _with_producer(
    cluster: LocalCluster, measure: Callable[[Producer, list[bytes], float], float], bodies: list[bytes],
    seconds: float,
) -> float:  # fmt: skip
    with Client(cluster.nameservers) as mq, mq.producer() as producer:
        measure(producer, bodies, 0.1)
        return measure(producer, bodies, seconds)


def _with_async_producer(
    cluster: LocalCluster,
    measure: Callable[[AsyncProducer, list[bytes], float], Coroutine[Any, Any, float]],
    bodies: list[bytes],
    seconds: float,
) -> float:
    async def run() -> float:
        async with AsyncClient(cluster.nameservers) as mq, mq.producer() as producer:
            await measure(producer, bodies, 0.1)
            return await measure(producer, bodies, seconds)

    return asyncio.run(run())


def _consuming(cluster: LocalCluster, measure: Callable[[Client, int], float], messages: int) -> float:
    with Client(cluster.nameservers) as mq:
        return measure(mq, messages)


def _consuming_async(
    cluster: LocalCluster, measure: Callable[[AsyncClient, int], Coroutine[Any, Any, float]], messages: int
) -> float:
    async def run() -> float:
        async with AsyncClient(cluster.nameservers) as mq:
            return await measure(mq, messages)

    return asyncio.run(run())


def fill(cluster: LocalCluster, chosen: Options) -> int:
    """Create the topics and send the backlog; return its number of messages."""
    batch = data.batch(data.MIB_ROWS, chosen.seed)
    batches = -(-chosen.messages // data.MIB_ROWS)
    with Client(cluster.nameservers) as mq:
        mq.create_topic(TOPIC, queues=QUEUES)
        mq.create_topic(BACKLOG, queues=QUEUES)
        with mq.producer() as producer, producer.batch_sender() as sender:
            for _ in range(batches):
                sender.add(BACKLOG, batch)
            sender.finish()
    return batches * data.MIB_ROWS


def measure(chosen: Options) -> dict[str, Any]:
    bodies = data.bodies(MESSAGES, chosen.seed).to_pylist()
    with LocalCluster(brokers=1) as cluster:
        messages = fill(cluster, chosen)
        sides: dict[str, tuple[Contestant, Contestant]] = {}
        for name, one, other in (
            ("submit", submit_async, submit), ("send", send_async, send),
            ("together", together_async, together),
        ):  # fmt: skip
            ours = partial(_with_async_producer, cluster, one, bodies, chosen.seconds)
            theirs = partial(_with_producer, cluster, other, bodies, chosen.seconds)
            sides[name] = Contestant(f"{name}, tasks", ours), Contestant(f"{name}, threads", theirs)
        for name, task, thread in (("consume", consume_async, consume), ("arrow", arrow_async, arrow)):
            ours = partial(_consuming_async, cluster, task, messages)
            theirs = partial(_consuming, cluster, thread, messages)
            sides[name] = Contestant(f"{name}, tasks", ours), Contestant(f"{name}, threads", theirs)
        alternate([side for pair in sides.values() for side in pair], chosen.turns)
    targets = {"submit": TARGET, "consume": TARGET}
    units = {"consume": "rows", "arrow": "rows"}
    return {name: compare(*pair, units.get(name, "calls"), targets.get(name)) for name, pair in sides.items()}


def main() -> None:
    chosen = options(
        "asyncio_clients", "Tasks against threads, sending and consuming.", seconds=1, messages=1_000_000
    )
    introduce("asyncio_clients")
    report("asyncio_clients", chosen, measure(chosen))


if __name__ == "__main__":
    main()
