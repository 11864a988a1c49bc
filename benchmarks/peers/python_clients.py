"""Programs without Spark: rocketq's client, confluent-kafka (librdkafka, in C) and RocketMQ's client in Java.

One thread of one program, messages of 100 bytes, 4 queues or partitions, one broker each, no sync a write.

    send        one message, its receipt, the next: `Producer.send`; `produce` and `flush` with linger 0;
                Java's `send`
    submit      messages one by one, a receipt or callback for each; Java's `send` with a `SendCallback`
    Arrow       the same messages as a table, against `produce` with a callback each; in Java lists
                of 1,000
    consume     a backlog as objects: `for message in consumer`; `poll` in a loop, and `consume(500)`; Java's
                `DefaultLitePullConsumer.poll`
    columns     the same backlog as Arrow batches, against the `poll` loop
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import AdminClient

from benchmarks.kit import data
from benchmarks.kit.instrument import Options, introduce, options, report, say
from benchmarks.peers import kafka_server, rocketmq_server, systems
from benchmarks.peers.kafka_server import KafkaServer
from benchmarks.peers.rocketmq_program import RocketmqProgram
from benchmarks.peers.rocketmq_server import RocketmqServer
from benchmarks.peers.sides import MINUTES, Allotment, Side, interleave
from rocketq import Client, LocalCluster
from rocketq.producing.producer import Producer

TOPIC: Final = "bench"
BACKLOG: Final = "backlog"
PARTITIONS: Final = 4
SENDS: Final = 3_000
SUBMITS: Final = 300_000
MESSAGES: Final = 2_000_000
#: What a reader has to know of the three systems.
SYSTEMS: Final = (systems.ABOUT, kafka_server.ABOUT, rocketmq_server.ABOUT)
#: Polls of confluent-kafka that find nothing before a turn is called broken.
EMPTY_POLLS_MAX: Final = 30

_groups: Iterator[int] = count()


class KafkaProgram:
    """What a program does with confluent-kafka."""

    def __init__(self, bootstrap: str, bodies: list[bytes]) -> None:
        self.bootstrap = bootstrap
        self.bodies = bodies
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [confluent_kafka.admin.NewTopic(name, PARTITIONS, 1) for name in (TOPIC, BACKLOG)]
        for made in admin.create_topics(topics).values():
            made.result(60)
        self._sender = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})

    def send(self) -> None:
        failed: list[Any] = []
        for body in self.bodies[:SENDS]:
            self._sender.produce(TOPIC, body, on_delivery=lambda error, _: failed.append(error))
            self._sender.flush()
        assert not any(failed)

    def submit(self, topic: str = TOPIC, messages: int = SUBMITS) -> None:
        delivered = 0

        def on_delivery(error: Any, _: Any) -> None:
            nonlocal delivered
            delivered += error is None

        produce, poll = self._producer.produce, self._producer.poll
        sent = 0
        while sent < messages:
            for body in self.bodies[: messages - sent]:
                while True:
                    try:
                        produce(topic, body, on_delivery=on_delivery)
                        break
                    except BufferError:
                        poll(0.1)
                sent += 1
            poll(0)
        self._producer.flush()
        assert delivered == messages

    def close(self) -> None:
        """End its producers before the server ends; otherwise they log that it is gone."""
        del self._sender, self._producer

    def _consumer(self) -> Any:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": f"g{next(_groups)}",
            "auto.offset.reset": "earliest",
        }
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([BACKLOG])
        return consumer

    def poll_loop(self) -> None:
        consumer = self._consumer()
        read = size = empty = 0
        while read < MESSAGES:
            message = consumer.poll(1.0)
            if message is None:
                empty += 1
                assert empty < EMPTY_POLLS_MAX
                continue
            assert message.error() is None
            size += len(message.value())
            read += 1
        consumer.close()

    def consume_many(self) -> None:
        consumer = self._consumer()
        read = size = 0
        while read < MESSAGES:
            for message in consumer.consume(500, 1.0):
                assert message.error() is None
                size += len(message.value())
                read += 1
        consumer.close()


class RocketqProgram:
    """What a program does with rocketq."""

    def __init__(self, client: Client, bodies: list[bytes]) -> None:
        self.client = client
        self.bodies = bodies
        for topic in (TOPIC, BACKLOG):
            client.create_topic(topic, queues=PARTITIONS)
        self._producer: Producer = client.producer()

    def send(self) -> None:
        for body in self.bodies[:SENDS]:
            self._producer.send(TOPIC, body)

    def submit(self) -> None:
        futures: list[Any] = []
        submit = self._producer.submit
        while len(futures) < SUBMITS:
            futures += [submit(TOPIC, body) for body in self.bodies[: SUBMITS - len(futures)]]
        self._producer.flush()
        for future in futures:
            future.result()

    def send_table(self, topic: str = TOPIC, messages: int = SUBMITS) -> None:
        table = pa.table({"body": pa.array(self.bodies, pa.binary())})
        sent = 0
        while sent < messages:
            part = table.slice(0, messages - sent)
            sent += sum(result.count for result in self._producer.send_batch(topic, part))

    def consume(self) -> None:
        read = size = 0
        with self.client.consumer(f"g{next(_groups)}", BACKLOG) as consumer:
            for message in consumer:
                size += len(message.body)
                read += 1
                if read == MESSAGES:
                    break

    def consume_arrow(self) -> None:
        read = size = 0
        with self.client.consumer(f"g{next(_groups)}", BACKLOG) as consumer:
            for batch in consumer.arrow(50_000):
                size += batch.column("body").nbytes
                read += batch.num_rows
                if read >= MESSAGES:
                    break


def _works(
    ours: RocketqProgram, kafka: KafkaProgram, java: RocketmqProgram
) -> dict[str, tuple[int, list[Side]]]:
    """Return of each work how many messages a turn has, and what the sides do."""
    return {
        "send": (
            SENDS,
            [
                Side("send", ours.send),
                Side("produce, flush", kafka.send),
                Side("Java: send", lambda: java.do("send", SENDS)),
            ],
        ),
        "submit": (
            SUBMITS,
            [
                Side("submit", ours.submit),
                Side("produce, a callback each", kafka.submit),
                Side("Java: send, a callback each", lambda: java.do("async", SUBMITS)),
            ],
        ),
        "Arrow": (
            SUBMITS,
            [
                Side("send_batch, Arrow", ours.send_table),
                Side("produce, a callback each", kafka.submit),
                Side("Java: send of lists", lambda: java.do("batch", SUBMITS)),
            ],
        ),
        "consume": (
            MESSAGES,
            [
                Side("for message in consumer", ours.consume),
                Side("poll loop", kafka.poll_loop),
                Side("consume(500)", kafka.consume_many),
                Side("Java: poll", lambda: java.do("consume", MESSAGES)),
            ],
        ),
        "columns": (
            MESSAGES,
            [Side("consumer.arrow", ours.consume_arrow), Side("poll loop", kafka.poll_loop)],
        ),
    }


def measure(chosen: Options) -> dict[str, Any]:
    bodies = data.bodies(10_000, chosen.seed).to_pylist()
    for line in SYSTEMS:
        say(f"   {line}")
    with (
        KafkaServer() as server,
        RocketmqServer(PARTITIONS) as rocketmq,
        LocalCluster(brokers=1) as cluster,
        Client(cluster.nameservers) as client,
    ):
        kafka, ours = KafkaProgram(server.bootstrap, bodies), RocketqProgram(client, bodies)
        java = RocketmqProgram(rocketmq.nameserver, TOPIC, BACKLOG)
        kafka.submit(BACKLOG, MESSAGES)
        ours.send_table(BACKLOG, MESSAGES)
        java.do("fill", MESSAGES)
        works = _works(ours, kafka, java)
        allotment = Allotment(chosen.minutes, len(works))
        results = {
            name: interleave(name, sides, messages, chosen.turns, allotment)
            for name, (messages, sides) in works.items()
        }
        kafka.close()
        java.close()
        return {"systems": SYSTEMS, "works": results}


def main() -> None:
    chosen = options(
        "peers.python_clients",
        "Programs of Python, beside confluent-kafka and RocketMQ's Java client.",
        turns=4,
        minutes=MINUTES,
    )
    introduce("peers.python_clients")
    report("peers.python_clients", chosen, measure(chosen))


if __name__ == "__main__":
    main()
