"""A group that has lost its master and cannot elect one that serves: its slave goes on answering readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rocketq import Client, LocalCluster, PullConsumer
from rocketq.admin.cluster import ClusterAdmin
from rocketq.message_query import FoundByKey
from rocketq.model import StoredMessage
from rocketq.net.nameserver_api import NameServerApi
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.retry import persist
from rocketq.protocol.documents.nameserver import MASTER_ID, UnregisterRequest
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient, patient_transport
from tests.support.spark_harness import Source

GROUP, TOPIC, COUNT = "broker-a", "orders", 50
BODIES = [b"%d" % number for number in range(COUNT)]


@dataclass
class Orphaned:
    """A group of two whose master was killed, with a consumer that had read a part before."""

    cluster: LocalCluster
    client: Client
    consumer: PullConsumer
    read: list[StoredMessage]


@pytest.fixture(scope="module")
def orphaned() -> Iterator[Orphaned]:
    with (
        LocalCluster(1, 1, replicas=2) as cluster,
        PatientClient(cluster.nameservers) as client,
        ClusterAdmin(cluster.nameservers) as admin,
    ):
        client.create_topic(TOPIC, queues=1)
        with client.producer() as producer:
            for number in range(COUNT):
                producer.send(TOPIC, b"%d" % number, key=f"key-{number}")
        with client.pull_consumer(TOPIC, start="earliest", prefetch_bytes=1, pull_bytes=1) as consumer:
            read = consumer.poll(1, timeout_ms=WAIT_MS)
            wait_for_slave(cluster)
            master = admin.replicas.status(GROUP).master
            cluster.kill(next(name for name, address in cluster.brokers.items() if address == master))
            forget_master(cluster.nameservers[0])
            yield Orphaned(cluster, client, consumer, read)


def wait_for_slave(cluster: LocalCluster) -> None:
    """Wait until the slave knows that everything is confirmed: it shows no more when its master is gone."""
    transport = patient_transport()
    replicas = [ReplicationApi(transport, GROUP, address) for address in cluster.brokers.values()]

    def is_known_to_all() -> bool:
        known = [api.status() for api in replicas]
        end = max(each.end for each in known)
        return all(each.confirmed == end for each in known)

    wait_until(is_known_to_all)
    transport.close()


def forget_master(address: str) -> None:
    """Make the NameServer forget the dead master now, as it does when its lease ends."""
    transport = patient_transport()
    nameserver = NameServerApi(transport, address)
    for live in nameserver.cluster().brokers:
        if live.identity.broker_id == MASTER_ID:
            nameserver.unregister(UnregisterRequest(live.identity))
    transport.close()


def rest(consumer: PullConsumer, found: list[StoredMessage]) -> list[bytes]:
    while len(found) < COUNT:
        found = found + consumer.poll(timeout_ms=WAIT_MS)
    return [message.body for message in found]


def test_a_pull_consumer_goes_on_at_the_slave(orphaned: Orphaned) -> None:
    assert rest(orphaned.consumer, orphaned.read) == BODIES


def test_a_new_pull_consumer_reads_at_the_slave(orphaned: Orphaned) -> None:
    made = persist(lambda: orphaned.client.pull_consumer(TOPIC, start="earliest"), "a new consumer", WAIT_MS)
    with made as consumer:
        assert rest(consumer, []) == BODIES


def test_messages_are_found_by_key_at_the_slave(orphaned: Orphaned) -> None:
    def found() -> FoundByKey:
        return persist(lambda: orphaned.client.query.by_key(TOPIC, "key-7"), "a query", WAIT_MS)

    # The slave's index is built behind its log.
    wait_until(lambda: not any(found().lag_bytes.values()))
    assert [message.offset for message in found().messages] == [7]


def test_spark_reads_a_batch_at_the_slave(orphaned: Orphaned) -> None:
    rows = Source(orphaned.cluster.nameservers, TOPIC).rows(startingOffsets="earliest")
    assert [bytes(row["value"]) for row in rows] == BODIES


def test_a_stream_of_spark_reads_at_the_slave(orphaned: Orphaned) -> None:
    stream = Source(orphaned.cluster.nameservers, TOPIC).stream(startingOffsets="earliest").begin()
    rows: list[dict[str, Any]] = []
    while len(rows) < COUNT:
        rows += stream.next_batch()
    stream.stop()
    assert [bytes(row["value"]) for row in rows] == BODIES
