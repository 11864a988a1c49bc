"""What tests share: one real cluster and one real SparkSession for the whole run.

`cluster` stays healthy: a test that kills, pauses or reconfigures servers starts a
LocalCluster of its own. Topic names are a test's own too; `topic` makes one.

`make test` runs four processes side by side (pytest-xdist). Tests of one file stay together, since
they share servers, and so do all that need Spark (`tests/support/scheduling.py`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rocketq import LocalCluster
from tests.support.examples import register_profiles
from tests.support.scheduling import Scheduling, turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)

register_profiles()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """One NameServer and the brokers broker-a and broker-b, as processes."""
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One SparkSession on two cores; a task may fail once. The connector is found without registering it."""
    from rocketq.testing import spark_session

    with spark_session(tmp_path_factory.mktemp("warehouse"), "rocketq-tests") as session:
        yield session


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name no other test uses."""
    named = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:80].strip("-")
    return f"{named}-{next(_numbers)}"
