"""The source as Spark drives it, without Spark: for what needs brokers but no JVM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.options.options import SourceOptions, source_options
from pyspark_rocketq.options.table import Use
from pyspark_rocketq.read.batch_reader import RangePartition, RocketqReader
from pyspark_rocketq.read.row_schema import source_schema
from pyspark_rocketq.stream.stream_reader import RocketqStreamReader
from rocketq.admin.live_masters import LiveMasters
from rocketq.client import Client
from rocketq.model import MessageQueue
from rocketq.net.broker_api import BrokerApi
from rocketq.net.nameserver_api import NameServerApi
from rocketq.net.route_cache import RouteCache
from rocketq.protocol.documents.nameserver import TopicRoute, UnregisterRequest


@dataclass(frozen=True)
class Source:
    """Options that every read of a test shares."""

    nameservers: Sequence[str]
    topic: str

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        base = {"nameservers": ",".join(self.nameservers)}
        if not {"subscribe", "subscribePattern", "assign"} & set(given):
            base["subscribe"] = self.topic
        return base | dict(given)

    def batch(self, **given: str) -> RocketqReader:
        options = source_options(self.options(given), Use.BATCH_READ)
        return RocketqReader(options, source_schema(options.include_properties))

    def rows(self, **given: str) -> list[dict[str, Any]]:
        """Read a batch to the end."""
        reader = self.batch(**given)
        return [row for one in reader.partitions() for part in reader.read(one) for row in part.to_pylist()]

    def stream(self, **given: str) -> Stream:
        options = source_options(self.options(given), Use.STREAM_READ)
        return Stream(RocketqStreamReader(options, source_schema(options.include_properties)), options)


class Stream:
    """A query: Spark's calls in Spark's order."""

    def __init__(self, reader: RocketqStreamReader, options: SourceOptions) -> None:
        self.reader = reader
        self.options = options
        self.limit: ReadLimit = reader.getDefaultReadLimit()
        self.offset: dict[str, Any] | None = None

    def begin(self, checkpoint: dict[str, Any] | None = None) -> Stream:
        self.offset = checkpoint or self.reader.initialOffset()
        return self

    def prepare(self) -> Stream:
        self.reader.prepareForTriggerAvailableNow()
        return self

    def next_batch(self) -> list[dict[str, Any]]:
        """Plan and read one micro-batch; empty if there was nothing to read after waiting."""
        assert self.offset is not None, "begin first"
        end = self.reader.latestOffset(self.offset, self.limit)
        rows = self.between(self.offset, end)
        self.offset = end
        return rows

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        return [row for one in self.partitions(start, end) for row in self.read(one)]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        return [one for one in self.reader.partitions(start, end) if isinstance(one, RangePartition)]

    def read(self, partition: RangePartition) -> list[dict[str, Any]]:
        return [row for part in self.reader.read(partition) for row in part.to_pylist()]

    def once(self) -> Stream:
        self.limit = ReadAllAvailable()
        return self

    def stop(self) -> None:
        self.reader.stop()


def fill(client: Client, topic: str, per_queue: int, queues: Iterable[MessageQueue] | None = None) -> None:
    """Send `per_queue` messages to each queue, in one batch each; the body says queue and number."""
    with client.producer(timeout_ms=60_000) as producer:
        for queue in queues if queues is not None else client.route(topic).write_queues():
            bodies = [f"{queue}#{i}".encode() for i in range(per_queue)]
            producer.send_batch(topic, pa.table({"body": pa.array(bodies, pa.binary())}), queue=queue)


def grow(client: Client, source: Source, queues: int) -> None:
    """Give the topic more queues, and wait until the NameServers tell of them."""
    client.alter_topic(source.topic, read_queues=queues, write_queues=queues)
    await_route(source, lambda route: all(data.write_queues >= queues for data in route.queues))


def forget(source: Source, broker: str) -> None:
    """Make the NameServers forget a broker that is dead, as they do when its lease ends."""
    transport = connection_to(tuple(source.nameservers)).transport
    for address in source.nameservers:
        nameserver = NameServerApi(transport, address)
        (dead,) = (live for live in nameserver.cluster().brokers if live.identity.broker == broker)
        nameserver.unregister(UnregisterRequest(dead.identity))
    await_brokers(source, 1)


def await_brokers(source: Source, count: int) -> None:
    """Wait until the NameServers tell of so many brokers of the topic."""
    await_route(source, lambda route: len(route.queues) == count)


def await_route(source: Source, is_as_wanted: Callable[[TopicRoute], bool]) -> None:
    routes = RouteCache(source.nameservers, connection_to(tuple(source.nameservers)).transport)
    route = routes.route(source.topic)
    while not is_as_wanted(route):
        route = routes.wait_for_change(source.topic, route, 10_000)


def masters(source: Source) -> list[BrokerApi]:
    """The brokers, to ask or tell them what only an operator would."""
    connection = connection_to(tuple(source.nameservers))
    return LiveMasters(connection.transport, connection.routes).apis()


def by_queue(rows: Iterable[Mapping[str, Any]]) -> dict[MessageQueue, list[int]]:
    """The offsets of the rows, by queue, as they came."""
    found: dict[MessageQueue, list[int]] = defaultdict(list)
    for row in rows:
        found[MessageQueue(row["topic"], row["broker"], row["queue"])].append(row["offset"])
    return dict(found)
