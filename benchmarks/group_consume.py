"""Consuming as a member of a group, as objects and as Arrow, against the pull consumer of the same client.

One backlog of messages of 100 bytes lies on a broker. In turn, the whole of it is read

    pull, objects      `PullConsumer.poll`: a value of Python for every field of every message
    group, objects     `for message in consumer`: a view of the batch; the body of each is read
    pull, Arrow        `PullConsumer.poll_arrow`
    group, Arrow       `Consumer.arrow`

A group is new in each turn, so it claims, begins and commits as a member does. Besides, members of a group
come and go, and the time is taken until all queues have owners again. And a message is sent every ms, and the
time is taken until the function of an idle listener gets it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any, Final

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from rocketq import Client, ConsumedMessage, Consumer, LocalCluster, MessageQueue

TOPIC: Final = "bench"
QUEUES: Final = 8
MESSAGES: Final = 2_000_000
#: Objects of a group against objects of the pull consumer.
OBJECTS_TARGET: Final = 2.0
MEMBERS: Final = 8
SHARED_QUEUES: Final = 64
DELAYED_MESSAGES: Final = 3_000

_groups: Iterator[int] = count()


def fill(mq: Client, seed: int) -> int:
    """Send the backlog; return the number of messages."""
    mq.create_topic(TOPIC, queues=QUEUES)
    batch = data.batch(data.MIB_ROWS, seed)
    batches = -(-MESSAGES // data.MIB_ROWS)
    with mq.producer() as producer, producer.batch_sender() as sender:
        for _ in range(batches):
            sender.add(TOPIC, batch)
        sender.finish()
    return batches * data.MIB_ROWS


def pull_objects(mq: Client, messages: int) -> int:
    bytes_read = read = 0
    with mq.pull_consumer(TOPIC, start="earliest") as consumer:
        while read < messages:
            for message in consumer.poll(500):
                bytes_read += len(message.body)
                read += 1
    return bytes_read


def group_objects(mq: Client, messages: int) -> int:
    bytes_read = read = 0
    with mq.consumer(f"objects-{next(_groups)}", TOPIC) as consumer:
        for message in consumer:
            bytes_read += len(message.body)
            read += 1
            if read == messages:
                break
    return bytes_read


def pull_arrow(mq: Client, messages: int) -> int:
    bytes_read = read = 0
    with mq.pull_consumer(TOPIC, start="earliest") as consumer:
        while read < messages:
            batch = consumer.poll_arrow(50_000)
            bytes_read += batch.column("body").nbytes
            read += batch.num_rows
    return bytes_read


def group_arrow(mq: Client, messages: int) -> int:
    bytes_read = read = 0
    with mq.consumer(f"arrow-{next(_groups)}", TOPIC) as consumer:
        for batch in consumer.arrow(50_000):
            bytes_read += batch.column("body").nbytes
            read += batch.num_rows
            if read >= messages:
                break
    return bytes_read


def contestant(name: str, mq: Client, messages: int, read: Callable[[Client, int], int]) -> Contestant:
    def turn() -> float:
        started = time.perf_counter()
        read(mq, messages)
        return messages / (time.perf_counter() - started)

    return Contestant(name, turn)


def settled(members: list[Consumer], queues: int) -> float:
    """Wait until the members own all queues in even shares; return how long it took, in seconds."""
    started = time.perf_counter()
    while True:
        owned: list[set[MessageQueue]] = [set(member.owned()) for member in members]
        sizes = [len(each) for each in owned]
        if len(set().union(*owned)) == sum(sizes) == queues and max(sizes) - min(sizes) <= 1:
            return time.perf_counter() - started


def hand_over_times(mq: Client, turns: int) -> dict[str, float]:
    """Let one of eight members leave in good order and another join; return the median times in seconds."""
    mq.create_topic("shared", queues=SHARED_QUEUES)
    leaving, joining = [], []
    with ExitStack() as stack:
        members = [stack.enter_context(mq.consumer("shared", "shared")) for _ in range(MEMBERS)]
        settled(members, SHARED_QUEUES)
        for _ in range(turns):
            members.pop(0).close()
            leaving.append(settled(members, SHARED_QUEUES))
            members.append(stack.enter_context(mq.consumer("shared", "shared")))
            joining.append(settled(members, SHARED_QUEUES))
    return {"after_a_member_left": statistics.median(leaving), "after_one_joined": statistics.median(joining)}


def listener_delays(mq: Client, messages: int) -> dict[str, float]:
    """Send a message every ms; return how long they take to the function of an idle listener, in ms."""
    mq.create_topic("delays", queues=1)
    delays: list[float] = []
    arrived = threading.Event()

    def handle(message: ConsumedMessage) -> None:
        delays.append((time.perf_counter_ns() - int(message.body)) / 1e6)
        if len(delays) == messages:
            arrived.set()

    pause = threading.Event()
    with mq.listener("delays", handle, group="delays", start="latest"), mq.producer() as producer:
        started = time.perf_counter()
        for number in range(messages):
            pause.wait(max(0.0, started + number / 1_000 - time.perf_counter()))
            producer.send("delays", b"%d" % time.perf_counter_ns())
        arrived.wait(60)
    cuts = statistics.quantiles(delays, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def measure(chosen: Options) -> dict[str, Any]:
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as mq:
        messages = fill(mq, chosen.seed)
        sides = {
            read.__name__: contestant(read.__name__.replace("_", ", "), mq, messages, read)
            for read in (pull_objects, group_objects, pull_arrow, group_arrow)
        }
        alternate(list(sides.values()), chosen.turns)
        results: dict[str, Any] = {
            "objects": compare(sides["group_objects"], sides["pull_objects"], "rows", OBJECTS_TARGET),
            "arrow": compare(sides["group_arrow"], sides["pull_arrow"], "rows", None),
        }
        times = hand_over_times(mq, chosen.turns)
        for what, seconds in times.items():
            say(
                f"{MEMBERS} members, {SHARED_QUEUES} queues, {what.replace('_', ' ')}: {seconds * 1e3:.0f} ms"
            )
        delays = listener_delays(mq, DELAYED_MESSAGES)
        say(
            f"from send to listener, p50 {delays['p50']:.1f} ms, p99 {delays['p99']:.1f} ms (target 3 and 15)"
        )
    return {**results, "hand_over_seconds": times, "listener_delay_ms": delays}


def main() -> None:
    chosen = options("group_consume", "Consume a backlog as a member of a group.")
    introduce("group_consume")
    report("group_consume", chosen, measure(chosen))


if __name__ == "__main__":
    main()
