"""The two systems that a Spark session is compared on, as a program sees them.

Both run at the same time, each with one broker, and one session in `local[2]` serves both: so they have the
same JVM, the same machine and the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyspark.sql import SparkSession

from benchmarks.kit.instrument import say
from benchmarks.peers import kafka_server, packages
from benchmarks.peers.kafka_server import KafkaServer
from pyspark_rocketq.session.local_session import local_session
from rocketq import Client, LocalCluster

ABOUT: Final = "rocketq: one NameServer, one broker, one replica, asynchronous flush"
#: What a reader of a comparison of Spark jobs has to know of both sides; it is printed and in the JSON.
BOTH: Final = (ABOUT, kafka_server.ABOUT)
_TOPIC_S: Final = 60


@dataclass(frozen=True)
class System:
    """One side."""

    name: str
    #: What Spark calls it, and the options that say where it is.
    format: str
    to: dict[str, str]
    #: The address for a program without Spark.
    address: str
    #: Makes a topic with so many queues or partitions.
    make_topic: Callable[[str, int], object]
    delete_topic: Callable[[str], None]
    #: How many messages a reader of a topic finds now.
    count: Callable[[str], int]
    pids: Sequence[int]
    #: Whether Spark reads and writes it in Python processes.
    in_python: bool
    #: Where its broker keeps messages.
    data: Path


@dataclass(frozen=True)
class Setup:
    """A session and two systems; ours is the first."""

    spark: SparkSession
    ours: System
    theirs: System

    @property
    def jvm(self) -> int:
        """The process id of Spark's JVM."""
        return int(self.spark.sparkContext._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]

    def other(self, system: System) -> System:
        return self.theirs if system is self.ours else self.ours


@contextmanager
def both(name: str) -> Iterator[Setup]:
    """Start both systems and a session; print what they are."""
    jars = ",".join(map(str, packages.spark_connector()))
    for line in BOTH:
        say(f"   {line}")
    with (
        KafkaServer() as server,
        LocalCluster(brokers=1) as cluster,
        Client(cluster.nameservers) as client,
    ):
        spark = local_session(name, cores=2, **{"spark.jars": jars})  # type: ignore[arg-type]
        try:
            yield Setup(spark, _ours(cluster, client), _theirs(server))
        finally:
            spark.stop()


def _ours(cluster: LocalCluster, client: Client) -> System:
    return System(
        name="rocketq",
        format="rocketq",
        to={"nameservers": ",".join(cluster.nameservers)},
        address=",".join(cluster.nameservers),
        make_topic=lambda topic, queues: client.create_topic(topic, queues=queues),
        delete_topic=client.delete_topic,
        count=lambda topic: sum(client.offsets_at(topic, "latest").values()),
        pids=[cluster.pid(name) for name in cluster.names],
        in_python=True,
        data=cluster.data_dir,
    )


def _theirs(server: KafkaServer) -> System:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})

    def make_topic(topic: str, partitions: int) -> None:
        for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            made.result(_TOPIC_S)

    def delete_topic(topic: str) -> None:
        for deleted in admin.delete_topics([topic]).values():
            deleted.result(_TOPIC_S)

    def count(topic: str) -> int:
        [made] = admin.list_topics(topic).topics.values()
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in made.partitions}
        return sum(found.result(_TOPIC_S).offset for found in admin.list_offsets(asked).values())

    return System(
        name="Kafka",
        format="kafka",
        to={"kafka.bootstrap.servers": server.bootstrap},
        address=server.bootstrap,
        make_topic=make_topic,
        delete_topic=delete_topic,
        count=count,
        pids=[server.pid],
        in_python=False,
        data=server.data,
    )
