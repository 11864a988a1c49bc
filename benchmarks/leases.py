"""What leased messages cost: sends while 100,000 are outstanding, and receives with their acknowledgements.

The first part sends while a group has so many messages leased, one lease for each 20 of them, against sends
without a lease: 90 % are to be left. The second part receives 32 messages at a time and acknowledges them
together, from several threads of one program. Asynchronous flush.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report
from rocketq import Client, LocalCluster, Message

TARGET: Final = 0.9
#: A receive of many and one of a single message are compared: at least so much more comes of the former.
RECEIVE_TARGET: Final = 4.0
TOPIC: Final = "bench"
GROUP: Final = "bench"
QUEUES: Final = 8
OUTSTANDING: Final = 100_000
AT_ONCE: Final = 20
HOUR_MS: Final = 3_600_000
THREADS: Final = 4


@contextmanager
def _client(messages: int, body: bytes) -> Iterator[Client]:
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as client:
        client.create_topic(TOPIC, queues=QUEUES)
        with client.producer(slice_bytes=1 << 16) as producer:
            for _ in range(0, messages, 10_000):
                producer.send_batch(TOPIC, [Message(body)] * 10_000)
        yield client


def _lease(client: Client, count: int) -> None:
    with client.simple_consumer(GROUP, TOPIC, invisible_ms=HOUR_MS, wait_ms=1_000) as consumer:

        def work(share: int) -> None:
            while share > 0:
                share -= len(consumer.receive(AT_ONCE))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, [count // THREADS] * THREADS))


def _sends(chosen: Options, body: bytes, leased: int) -> float:
    """Return sends a second while so many messages are leased."""
    with _client(OUTSTANDING, body) as client, client.producer() as producer:
        if leased:
            _lease(client, leased)
        for _ in range(50):
            producer.send(TOPIC, body)
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < chosen.seconds:
            producer.send(TOPIC, body)
            count += 1
        return count / passed


def _receives(chosen: Options, body: bytes, at_once: int) -> float:
    """Return messages a second that are received and acknowledged."""
    with (
        _client(200_000, body) as client,
        client.simple_consumer(GROUP, TOPIC, invisible_ms=HOUR_MS, wait_ms=0) as consumer,
    ):
        consumer.ack(consumer.receive(at_once))
        ends = time.perf_counter() + chosen.seconds

        def work(_: int) -> int:
            count = 0
            while time.perf_counter() < ends:
                count += consumer.ack(consumer.receive(at_once)).acknowledged
            return count

        began = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            count = sum(pool.map(work, range(THREADS)))
        return count / (time.perf_counter() - began)


def main() -> None:
    chosen = options("leases", "Sends beside leased messages; receives and acknowledgements.", seconds=4)
    introduce("leases")
    body = data.bodies(1, chosen.seed)[0].as_py()
    beside = Contestant("sends beside 100,000 leased messages", partial(_sends, chosen, body, OUTSTANDING))
    alone = Contestant("sends", partial(_sends, chosen, body, 0))
    alternate([beside, alone], chosen.turns)
    many = Contestant("32 messages a receive", partial(_receives, chosen, body, 32))
    single = Contestant("one message a receive", partial(_receives, chosen, body, 1))
    alternate([many, single], chosen.turns)
    report(
        "leases",
        chosen,
        {
            "sends": compare(beside, alone, "calls", TARGET),
            "messages received and acknowledged": compare(many, single, "calls", RECEIVE_TARGET),
        },
    )


if __name__ == "__main__":
    main()
