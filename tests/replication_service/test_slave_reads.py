"""Consumers that lag are sent to slaves, and read there what they would read from the master.

The share of memory is 0 %, so whoever is not at the end of the log lags far.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from pyspark_rocketq.connections import Connection
from pyspark_rocketq.options.options import source_options
from pyspark_rocketq.options.table import Use
from pyspark_rocketq.read.partitions import QueueRange
from pyspark_rocketq.read.range_pull import RangePulls
from rocketq import AsyncClient, Client, LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors import TopicNotFound
from rocketq.model import Message, MessageQueue, PullStatus, StoredMessage
from rocketq.net.broker_api import BrokerApi
from rocketq.net.read_replicas import ReadReplicas
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from tests.client.aio.asyncio_support import run
from tests.client.consuming.groups_support import take
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient, patient_transport

GROUP = "broker-a"
COUNT = 400
#: A pull brings a small part of the messages.
PULL_BYTES = 64 * 1024
MASTER = 0


@pytest.fixture(scope="module")
def group() -> Iterator[LocalCluster]:
    arguments = ["--access-message-in-memory-max-ratio", "0"]
    with LocalCluster(brokers=1, replicas=2, broker_arguments=arguments) as running:
        yield running


@pytest.fixture(scope="module")
def mq(group: LocalCluster) -> Iterator[Client]:
    with PatientClient(group.nameservers) as client:
        yield client


@pytest.fixture(scope="module")
def transport() -> Iterator[Transport]:
    made = patient_transport()
    yield made
    made.close()


@pytest.fixture
def filled(mq: Client, group: LocalCluster, transport: Transport, topic: str) -> str:
    """A topic of one queue with messages in many frames, all of them on each replica."""
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        for first in range(0, COUNT, 20):
            producer.send_batch(topic, [message(n) for n in range(first, first + 20)])
    for address in group.brokers.values():
        slave = BrokerApi(transport, GROUP, address)
        wait_until(lambda api=slave: holds_all(api, topic))  # type: ignore[misc]
    return topic


def holds_all(api: BrokerApi, topic: str) -> bool:
    try:
        return api.offsets(topic).total == COUNT
    except TopicNotFound:
        return False


def message(number: int) -> Message:
    return Message(
        b"%06d" % number + bytes(2_000), key=f"key-{number}", tag="even" if number % 2 == 0 else "odd"
    )


def numbers(messages: Sequence[StoredMessage]) -> list[int]:
    return [int(each.body[:6]) for each in messages]


def master_and_slaves(group: LocalCluster, transport: Transport) -> list[BrokerApi]:
    with ClusterAdmin(group.nameservers) as admin:
        status = admin.replicas.status(GROUP)
    addresses = sorted(group.brokers.values(), key=lambda address: address != status.master)
    return [BrokerApi(transport, GROUP, address) for address in addresses]


def wait_for_slaves(group: LocalCluster, transport: Transport) -> None:
    """Wait until the slaves show all that the log of the master has now, claims of queues too."""
    replicas = [ReplicationApi(transport, GROUP, address) for address in group.brokers.values()]
    end = max(api.status().end for api in replicas)
    wait_until(lambda: all(api.status().confirmed >= end for api in replicas))


class SlaveBytes:
    """How many bytes slaves have handed out since this was made."""

    def __init__(self, group: LocalCluster, transport: Transport) -> None:
        self._apis = [BrokerApi(transport, GROUP, address) for address in group.brokers.values()]
        self._before = self._counted()

    def _counted(self) -> float:
        lines = itertools.chain.from_iterable(api.metrics().splitlines() for api in self._apis)
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("rocketq_replica_slave_read_bytes_total{")
        )

    @property
    def read(self) -> float:
        return self._counted() - self._before


@pytest.fixture
def at_slaves(group: LocalCluster, transport: Transport, filled: str) -> SlaveBytes:
    return SlaveBytes(group, transport)


def test_a_replica_suggests_a_slave_to_who_lags_and_the_master_to_others(
    group: LocalCluster, transport: Transport, filled: str
) -> None:
    for api in master_and_slaves(group, transport):
        lagging = api.pull(filled, 0, 0, max_bytes=1)
        assert lagging.status is PullStatus.FOUND
        assert lagging.suggested != MASTER
        assert api.pull(filled, 0, COUNT).suggested == MASTER


def test_a_filtered_pull_suggests_by_how_far_it_has_looked(
    group: LocalCluster, transport: Transport, filled: str
) -> None:
    master, *_ = master_and_slaves(group, transport)
    assert master.pull(filled, 0, 0, tag="even", max_messages=1).suggested != MASTER
    nothing = master.pull(filled, 0, 0, tag="neither", end=10)
    assert nothing.status is PullStatus.NO_MATCHED_MSG
    assert nothing.suggested != MASTER


def test_a_pull_consumer_reads_its_backlog_from_slaves_and_then_new_messages(
    mq: Client, filled: str, at_slaves: SlaveBytes
) -> None:
    with mq.pull_consumer(filled, start="earliest", pull_bytes=PULL_BYTES) as consumer:
        found: list[StoredMessage] = []
        while len(found) < COUNT:
            found += consumer.poll(timeout_ms=WAIT_MS)
        assert numbers(found) == list(range(COUNT))
        assert at_slaves.read > COUNT * 1_000
        with mq.producer() as producer:
            for number in range(COUNT, COUNT + 3):
                producer.send_batch(filled, [message(number)])
                assert numbers(consumer.poll(timeout_ms=WAIT_MS)) == [number]


def test_a_consumer_with_a_filter_reads_its_backlog_from_slaves(
    mq: Client, filled: str, at_slaves: SlaveBytes
) -> None:
    with mq.pull_consumer(filled, start="earliest", pull_bytes=PULL_BYTES, tags="odd") as consumer:
        found: list[StoredMessage] = []
        while len(found) < COUNT // 2:
            found += consumer.poll(timeout_ms=WAIT_MS)
    assert numbers(found) == list(range(1, COUNT, 2))
    assert at_slaves.read > 0


def test_a_member_of_a_group_reads_at_slaves_which_check_its_claim(
    group: LocalCluster, transport: Transport, mq: Client, filled: str, at_slaves: SlaveBytes
) -> None:
    limits = {"pull_bytes": PULL_BYTES, "buffer_bytes": 2 * PULL_BYTES}
    with mq.consumer("lagging", [filled], start="earliest", **limits) as member:
        found = take(member, 1)
        wait_for_slaves(group, transport)
        while len(found) < COUNT:
            found[-1].ack()
            found += take(member, 1)
        found[-1].ack()
        assert [int(each.body[:6]) for each in found] == list(range(COUNT))
    assert at_slaves.read > 0
    with mq.consumer("lagging", [filled]) as member:
        wait_until(lambda: member.owned() and sum(member.lag().values()) == 0)


def test_an_asynchronous_consumer_reads_at_slaves(
    group: LocalCluster, filled: str, at_slaves: SlaveBytes
) -> None:
    async def work(client: AsyncClient) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async with client.pull_consumer(filled, start="earliest", pull_bytes=PULL_BYTES) as consumer:
            while len(found) < COUNT:
                found += await consumer.poll(timeout_ms=WAIT_MS)
        return found

    assert numbers(run(group, work)) == list(range(COUNT))
    assert at_slaves.read > 0


def read_range(group: LocalCluster, transport: Transport, topic: str) -> Iterator[int]:
    """The offsets of the whole queue, as a task of Spark reads them."""
    options = source_options({"nameservers": ",".join(group.nameservers), "subscribe": topic}, Use.BATCH_READ)
    connection = Connection(transport, RouteCache(group.nameservers, transport), ReadReplicas(transport))
    whole = QueueRange(MessageQueue(topic, GROUP, 0), 0, COUNT)
    for piece in RangePulls(connection, options, whole, PULL_BYTES).slices():
        yield from piece.offsets().tolist()


def test_a_task_of_spark_reads_its_range_at_slaves(
    group: LocalCluster, transport: Transport, filled: str, at_slaves: SlaveBytes
) -> None:
    assert list(read_range(group, transport, filled)) == list(range(COUNT))
    assert at_slaves.read > 0


def test_a_slave_finds_messages_by_key_by_time_and_by_id(
    group: LocalCluster, transport: Transport, filled: str
) -> None:
    for slave in master_and_slaves(group, transport)[1:]:

        def by_key(api: BrokerApi = slave) -> list[int]:
            answer = api.query_by_key(filled, b"key-7", begin_us=None, end_us=None, limit=10)
            return [each.offset for each in answer.messages]

        wait_until(lambda find=by_key: find() == [7])  # type: ignore[misc]
        in_time = slave.query_by_time(filled, begin_us=0, end_us=None, limit=COUNT)
        assert [each.offset for each in in_time.messages] == list(range(len(in_time.messages)))
        assert in_time.messages
        assert slave.message(f"{GROUP}:{filled}:0:7").offset == 7


def test_readers_go_on_at_the_master_when_the_slaves_die(
    group: LocalCluster, transport: Transport, mq: Client, filled: str, at_slaves: SlaveBytes
) -> None:
    reading = read_range(group, transport, filled)
    offsets = list(itertools.islice(reading, COUNT // 4))
    few = 2 * PULL_BYTES
    with mq.pull_consumer(filled, start="earliest", pull_bytes=PULL_BYTES, prefetch_bytes=few) as consumer:
        found = consumer.poll(10, timeout_ms=WAIT_MS)
        wait_until(lambda: at_slaves.read > PULL_BYTES)
        slaves = {api.address for api in master_and_slaves(group, transport)[1:]}
        names = [name for name, address in group.brokers.items() if address in slaves]
        for name in names:
            group.kill(name)
        while len(found) < COUNT:
            found += consumer.poll(timeout_ms=WAIT_MS)
    assert numbers(found) == list(range(COUNT))
    assert offsets + list(reading) == list(range(COUNT))
    for name in names:
        group.restart(name)
