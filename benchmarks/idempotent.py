"""What it costs that each send has a number, by which a broker stores it once however often it comes.

The same producer with and without numbers (`ProducerConfig.idempotent`), at one broker, with asynchronous
flush: `send` of one 100-byte message after the other, `submit` of such messages by one thread with a receipt
each, and `send_batch` of Arrow tables of 4,000. The two take turns of a few milliseconds, so that what else
happens on the machine falls on both. The first result of each pair compares the processor time that a message
costs client and broker together, of which other work on the machine takes nothing away; the second one the
median length of a call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, compare, introduce, options, report, say
from rocketq import Client, LocalCluster
from rocketq.producing.producer import Producer

#: Numbers may cost 5 %.
TARGET: Final = 0.95
TOPIC: Final = "bench"
QUEUES: Final = 4
#: Calls of one producer before the other has its turn, and messages in a table or between two flushes.
CALLS: Final = 20
MESSAGES: Final = 4_000

#: Sends with a producer; returns how many messages.
Way = Callable[[Producer], int]


class Measured:
    """What the turns of one producer took."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.lengths: list[float] = []
        self.messages = 0
        self.processor_s = 0.0

    def turn(self, way: Way, broker: int) -> None:
        used, began = _processor_s(broker), time.perf_counter()
        count = way(self.producer)
        self.lengths.append((time.perf_counter() - began) / count)
        self.processor_s += _processor_s(broker) - used
        self.messages += count


def _processor_s(broker: int) -> float:
    """Return the processor time that this process and the broker have used, of all their threads."""
    threads = Path(f"/proc/{broker}/task").iterdir()
    nanoseconds = sum(int((each / "schedstat").read_text().split()[0]) for each in threads)
    return time.process_time() + nanoseconds / 1e9


def _compared(title: str, way: Way, chosen: Options) -> dict[str, object]:
    names = (f"{title}, numbered", f"{title}, not numbered")
    costs, speeds = ([Contestant(name) for name in names] for _ in range(2))
    for turn in range(chosen.turns):
        with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as client:
            client.create_topic(TOPIC, queues=QUEUES)
            broker = cluster.pid(cluster.names[-1])
            with client.producer() as first, client.producer(idempotent=False) as second:
                both = [Measured(first), Measured(second)]
                for each in both:
                    way(each.producer)
                deadline, order = time.perf_counter() + chosen.seconds, list(both)
                while time.perf_counter() < deadline:
                    order.reverse()
                    for each in order:
                        each.turn(way, broker)
        for each, cost, speed in zip(both, costs, speeds, strict=True):
            cost.rates.append(each.messages / each.processor_s)
            speed.rates.append(1 / statistics.median(each.lengths))
            say(f"  turn {turn + 1}/{chosen.turns}  {cost.name:<34} {cost.rates[-1]:,.0f}")
    say("messages a second of processor time of client and broker:")
    result = {"processor": compare(*costs, "calls", TARGET)}
    say("messages a second, by the median call:")
    return {**result, "time": compare(*speeds, "calls", TARGET)}


def main() -> None:
    chosen = options("idempotent", "Sends with and without numbers.", seconds=3, turns=3)
    introduce("idempotent")
    bodies = data.bodies(MESSAGES, chosen.seed).to_pylist()
    table = pa.table({"body": pa.array(bodies, pa.binary())})

    def send(producer: Producer) -> int:
        for _ in range(CALLS):
            producer.send(TOPIC, bodies[0])
        return CALLS

    def submit(producer: Producer) -> int:
        futures = [producer.submit(TOPIC, body) for body in bodies]
        producer.flush()
        for future in futures:
            future.result()
        return len(futures)

    def send_batch(producer: Producer) -> int:
        return sum(result.count for result in producer.send_batch(TOPIC, table))

    results = {
        name: _compared(name, way, chosen)
        for name, way in (("send", send), ("submit", submit), ("send_batch", send_batch))
    }
    report("idempotent", chosen, results)


if __name__ == "__main__":
    main()
