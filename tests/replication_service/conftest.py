"""A group of three replicas that stays healthy, for tests that break nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import LocalCluster


@pytest.fixture(scope="module")
def group() -> Iterator[LocalCluster]:
    """One NameServer, which keeps the register, and the replicas broker-a.1, broker-a.2 and broker-a.3."""
    with LocalCluster(brokers=1, replicas=3) as running:
        yield running
