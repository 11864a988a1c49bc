"""Fixtures of pytest, for a conftest.py that says `pytest_plugins = ["rocketq.testing.fixtures"]`.

    rocketq_cluster      one EmbeddedCluster for the whole run
    rocketq_client       a client of it
    rocketq_topic        a new topic for each test
    rocketq_own_cluster  an EmbeddedCluster for one test, which may stop its brokers and move its clock
    rocketq_spark        one SparkSession for the whole run

This is no entry point that pytest finds by itself: that would be loaded in every run of every project on a
machine that has rocketq.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rocketq.client import Client
from rocketq.testing.embedded_cluster import EmbeddedCluster
from rocketq.testing.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def rocketq_cluster() -> Iterator[EmbeddedCluster]:
    """One NameServer and one broker that all tests share."""
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketq_client(rocketq_cluster: EmbeddedCluster) -> Iterator[Client]:
    """A client of the cluster that all tests share."""
    with rocketq_cluster.client() as client:
        yield client


@pytest.fixture
def rocketq_topic(rocketq_client: Client, request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses; it is there."""
    named = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:80].strip("-")
    name = f"{named}-{next(_numbers)}"
    rocketq_client.create_topic(name)
    return name


@pytest.fixture
def rocketq_own_cluster() -> Iterator[EmbeddedCluster]:
    """A cluster of this test alone."""
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketq_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A SparkSession that all tests share."""
    with spark_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session
