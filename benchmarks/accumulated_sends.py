"""`Producer.submit` of 100-byte messages by one thread, each with its receipt.

A turn submits messages for a time, flushes, and asks every future for its result. `callbacks` is the same
with a callback for each message. The reference is `send_batch` of the same messages as an Arrow table, which
makes no receipt for a single message. The broker is a process on this machine; asynchronous flush.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import pyarrow as pa

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from rocketq import Client, LocalCluster
from rocketq.producing.producer import Producer

TARGET_PER_SECOND: Final = 150_000
TOPIC: Final = "bench"
QUEUES: Final = 4
#: Messages between two looks at the clock, and in a table that is sent at once.
MESSAGES: Final = 10_000


def _receipts(producer: Producer, bodies: list[bytes], seconds: float) -> float:
    submit = producer.submit
    futures = []
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        futures += [submit(TOPIC, body) for body in bodies]
    producer.flush()
    for future in futures:
        future.result()
    return len(futures) / (time.perf_counter() - started)


def _callbacks(producer: Producer, bodies: list[bytes], seconds: float) -> float:
    called: list[int] = []
    count = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        for body in bodies:
            producer.submit(TOPIC, body).add_done_callback(lambda known: called.append(known.result().offset))
        count += len(bodies)
    producer.flush()
    assert len(called) == count
    return count / (time.perf_counter() - started)


def _arrow(producer: Producer, bodies: list[bytes], seconds: float) -> float:
    table = pa.table({"body": pa.array(bodies * 10, pa.binary())})
    count = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        count += sum(result.count for result in producer.send_batch(TOPIC, table))
    return count / (time.perf_counter() - started)


def _turn(measure: Any, chosen: Options, bodies: list[bytes]) -> float:
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as client:
        client.create_topic(TOPIC, queues=QUEUES)
        with client.producer() as producer:
            measure(producer, bodies, 0.2)
            return float(measure(producer, bodies, chosen.seconds))


def main() -> None:
    chosen = options("accumulated_sends", "Messages that are submitted one by one.", seconds=2)
    introduce("accumulated_sends")
    bodies = data.bodies(MESSAGES, chosen.seed).to_pylist()
    receipts = Contestant("submit, a receipt each", partial(_turn, _receipts, chosen, bodies))
    callbacks = Contestant("submit, a callback each", partial(_turn, _callbacks, chosen, bodies))
    arrow = Contestant("send_batch, Arrow", partial(_turn, _arrow, chosen, bodies))
    alternate([receipts, callbacks, arrow], chosen.turns)
    results = {
        "receipts": compare(receipts, arrow, "calls", None),
        "callbacks": compare(callbacks, arrow, "calls", None),
    }
    met = receipts.median >= TARGET_PER_SECOND
    say(f"target >= {TARGET_PER_SECOND:,} messages/s with a receipt each  {'met' if met else 'MISSED'}")
    report("accumulated_sends", chosen, results)


if __name__ == "__main__":
    main()
