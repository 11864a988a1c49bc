"""A client of the shared cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import Client, LocalCluster
from tests.support.patience import PatientClient


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client
