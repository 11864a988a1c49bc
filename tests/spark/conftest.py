"""What the Spark tests share beside `cluster`, `spark` and `topic`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import LocalCluster
from rocketq.client import Client
from tests.support.patience import PatientClient
from tests.support.spark_harness import Source


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as made:
        yield made


@pytest.fixture
def source(cluster: LocalCluster, client: Client, topic: str) -> Source:
    """A topic of two queues on each of two brokers, and how to read it."""
    client.create_topic(topic, queues=2)
    return Source(cluster.nameservers, topic)
