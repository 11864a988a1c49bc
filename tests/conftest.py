"""What tests share: one real cluster and one real SparkSession for the whole run.

`cluster` stays healthy: a test that kills, pauses or reconfigures servers starts a
LocalCluster of its own. Topic names are a test's own too; `topic` makes one.

`make test` runs two processes side by side (pytest-xdist). Tests of one file stay together, since
they share servers, and so do all that need Spark: one session serves them all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from rocketq import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)

# How long an example takes says more about the machine than about the code.
settings.register_profile("rocketq", deadline=None, print_blob=True)
settings.load_profile("rocketq")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests must run in the same process, one after the other."""
    for item in items:
        needs_spark = "spark" in getattr(item, "fixturenames", ())
        group = "spark" if needs_spark else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """One NameServer and the brokers broker-a and broker-b, as processes."""
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One SparkSession on two cores; a task may fail once. The connector is found without registering it."""
    from pyspark_rocketq.session.local_session import local_session

    session = local_session(
        "rocketq-tests",
        cores=2,
        short_lived=True,
        **{
            "spark.master": "local[2,2]",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name no other test uses."""
    named = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:80].strip("-")
    return f"{named}-{next(_numbers)}"
