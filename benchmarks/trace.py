"""What a trace costs sends: clients that record one message in a hundred, or all, against one without a
trace.

The three ways to send are measured: `send` one message after the other, `submit` with a receipt each, and
`send_batch` of Arrow tables; messages of 100 bytes. All clients send to the same broker, a process on this
machine with asynchronous flush, and take turns. What counts is the processor time of this process, all
its threads together, of which other work on the machine takes nothing away. A turn ends when its records are
sent, so that none of them falls on another's turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pyarrow as pa

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, alternate, compare, introduce, options, report, say
from rocketq import Client, LocalCluster
from rocketq.producing.producer import Producer

#: With one message in a hundred recorded, at most 3 % of the rate may be lost.
TARGET: Final = 0.97
TOPIC: Final = "bench"
QUEUES: Final = 4
RATES: Final = {"no trace": 0.0, "one in a hundred": 0.01, "all": 1.0}
#: Messages between two looks at the clock.
MESSAGES: Final = 10_000

Send = Callable[[Producer, list[bytes]], int]


def _send(producer: Producer, bodies: list[bytes]) -> int:
    for body in bodies[:50]:
        producer.send(TOPIC, body)
    return 50


def _submit(producer: Producer, bodies: list[bytes]) -> int:
    futures = [producer.submit(TOPIC, body) for body in bodies]
    producer.flush()
    for future in futures:
        future.result()
    return len(futures)


def _send_batch(producer: Producer, bodies: list[bytes]) -> int:
    table = pa.table({"body": pa.array(bodies * 10, pa.binary())})
    return sum(result.count for result in producer.send_batch(TOPIC, table))


def _turn(send: Send, client: Client, producer: Producer, bodies: list[bytes], seconds: float) -> float:
    """Return how many messages a second of processor time sends."""
    count = 0
    used, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < seconds:
        count += send(producer, bodies)
    if client.tracing is not None:
        client.tracing.flush()
    return count / (time.process_time() - used)


def main() -> None:
    chosen = options("trace", "Sends with and without a trace.", seconds=0.5, turns=15)
    introduce("trace")
    bodies = data.bodies(MESSAGES, chosen.seed).to_pylist()
    results: dict[str, Any] = {}
    with LocalCluster(brokers=1) as cluster, ExitStack() as opened:
        clients = {
            name: opened.enter_context(Client(cluster.nameservers, trace=rate))
            for name, rate in RATES.items()
        }
        clients["no trace"].create_topic(TOPIC, queues=QUEUES)
        producers = {name: opened.enter_context(client.producer()) for name, client in clients.items()}
        for way, send in (("send", _send), ("submit", _submit), ("send_batch", _send_batch)):
            sides = [
                Contestant(
                    f"{way}, {name}", partial(_turn, send, clients[name], producer, bodies, chosen.seconds)
                )
                for name, producer in producers.items()
            ]
            for side in sides:
                side.turn()
            alternate(sides, chosen.turns)
            results[way] = compare(sides[1], sides[0], "calls", TARGET)
            results[f"{way}, all"] = compare(sides[2], sides[0], "calls", None)
        for name, client in clients.items():
            if client.tracing is not None:
                client.tracing.flush()
                counts = client.tracing.counts()
                say(f"{name}: {counts.stored:,} records stored, {counts.dropped:,} dropped")
    report("trace", chosen, results)


if __name__ == "__main__":
    main()
