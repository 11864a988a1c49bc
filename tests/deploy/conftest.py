"""What a dashboard and alert rules can ask for: the metrics of real servers, with their labels."""

from __future__ import annotations

import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rocketq.protocol.documents.replication import ReplicaState, ReplicationStatus
from rocketq.testing import EmbeddedCluster
from rocketq_broker.metrics.replication_metrics import ReplicationCollector
from tests.support.conditions import WAIT_MS

#: A master with one slave; a broker of the embedded cluster is no replica.
MASTER: Final = ReplicationStatus(
    broker="broker-a", group="broker-a", number=0, incarnation="a", role="master", epoch=1, master="",
    min_in_sync=1, begin=0, end=0, held=0, confirmed=0,
    replicas=(ReplicaState(0, "a", "", True, True), ReplicaState(1, "b", "", True, True)),
)  # fmt: skip


@pytest.fixture(scope="session")
def labels() -> dict[str, set[str]]:
    """The labels of each sample of a broker that has something of everything, a NameServer, and a replica."""
    found: dict[str, set[str]] = defaultdict(set)
    with EmbeddedCluster() as cluster, cluster.client() as mq:
        mq.create_topic("orders", queues=1)
        with mq.producer() as producer, mq.consumer("billing", "orders", start="earliest") as consumer:
            producer.send("orders", b"x")
            assert consumer.poll(timeout_ms=WAIT_MS)
            with mq.simple_consumer("receiving", "orders", start="earliest") as receiver:
                assert receiver.receive(wait_ms=WAIT_MS)
            for address in (cluster.brokers["broker-a"], cluster.nameservers):
                with urllib.request.urlopen(f"{address}/metrics") as answer:
                    _learn(found, text_string_to_metric_families(answer.read().decode()))
    _learn(found, ReplicationCollector("default", "broker-a", lambda: MASTER, lambda: 0).collect())
    return found


def _learn(found: dict[str, set[str]], families: Iterable[Metric]) -> None:
    for family in families:
        # A family without samples yet, such as that of dead letters, has only its name.
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
        for suffix in suffixes.get(family.type, ("",)):
            found[family.name + suffix] |= set()
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)


def names(expression: str) -> list[str]:
    """Return the metrics of the servers that a PromQL expression asks for."""
    return re.findall(r"\b((?:rocketm?q|process)_[a-z_]+)", expression)
