"""A slave that lacks the log, or its next part, copies what its master has, on real brokers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketq import Client, LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.model import PullStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.replication import ReplicationStatus
from tests.support.command_line import rocketq
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient, patient_transport

pytestmark = pytest.mark.slow

GROUP, TOPIC = "broker-a", "orders"
SEGMENT_BYTES = 100_000
ARGUMENTS = [
    "--min-in-sync", "1", "--segment-bytes", str(SEGMENT_BYTES), "--retention-bytes", str(3 * SEGMENT_BYTES),
    "--catch-up-bytes-per-s", "200000",
]  # fmt: skip


def send(client: Client, segments: int) -> None:
    """Send what fills so many segments."""
    with client.producer() as producer:
        for _ in range(segments * 10):
            producer.send(TOPIC, b"x" * (SEGMENT_BYTES // 10))


def statuses(cluster: LocalCluster, transport: Transport) -> dict[str, ReplicationStatus]:
    return {
        name: ReplicationApi(transport, GROUP, address).status() for name, address in cluster.brokers.items()
    }


def test_slaves_begin_at_the_oldest_segment_that_the_master_has(tmp_path: Path) -> None:
    with (
        LocalCluster(1, 1, tmp_path, replicas=3, broker_arguments=ARGUMENTS) as cluster,
        PatientClient(cluster.nameservers) as client,
        ClusterAdmin(cluster.nameservers) as admin,
    ):
        transport = patient_transport()
        client.create_topic(TOPIC, queues=1)
        send(client, 1)
        wait_until(lambda: all(each.is_in_sync for each in admin.replicas.status(GROUP).replicas))
        master = admin.replicas.status(GROUP).master
        behind, emptied = (name for name, address in cluster.brokers.items() if address != master)
        for name in (behind, emptied):
            cluster.kill(name)
        send(client, 10)
        wait_until(lambda: admin.replicas.status(GROUP).begin > SEGMENT_BYTES)
        shutil.rmtree(tmp_path / emptied)
        for name in (behind, emptied):
            cluster.restart(name)
        wait_until(lambda: all(each.is_in_sync for each in admin.replicas.status(GROUP).replicas))
        end = admin.replicas.status(GROUP).end
        wait_until(lambda: all(each.confirmed >= end for each in statuses(cluster, transport).values()))
        found = statuses(cluster, transport)
        for name in (behind, emptied):
            assert found[name].begin > 0
            assert found[name].end == end
            assert found[name].fetched_bytes >= end - found[name].begin
            slave = BrokerApi(transport, GROUP, cluster.brokers[name])
            assert slave.pull(TOPIC, 0, slave.offsets(TOPIC).queues[0].min).status is PullStatus.FOUND
        shown = rocketq(
            "broker", "replicas", GROUP, "-o", "json", "--nameservers", ",".join(cluster.nameservers)
        )
        assert [each["held_percent"] for each in shown.json] == [100.0] * 3
        transport.close()
