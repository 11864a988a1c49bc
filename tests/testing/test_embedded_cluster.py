"""The cluster for users' tests: what it starts, what moving its clock does, and the page that shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from rocketq.errors import InvalidConfiguration, RocketqError
from rocketq.testing import EmbeddedCluster, MovableClock
from tests.support.conditions import WAIT_MS

PAGE: Final = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
BLOCKS: Final = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_a_delayed_message_is_due_when_the_clock_was_moved() -> None:
    with EmbeddedCluster() as cluster, cluster.client() as client:
        client.create_topic("orders", queues=1)
        with client.producer() as producer, client.pull_consumer("orders", start="earliest") as consumer:
            producer.send("orders", b"later", delay="1h")
            producer.send("orders", b"now")
            assert [each.body for each in consumer.poll(timeout_ms=WAIT_MS)] == [b"now"]
            cluster.advance(timedelta(hours=1))
            assert [each.body for each in consumer.poll(timeout_ms=WAIT_MS)] == [b"later"]


def test_a_lease_runs_out_when_the_clock_was_moved() -> None:
    with EmbeddedCluster() as cluster, cluster.client() as client:
        client.create_topic("orders", queues=1)
        with client.producer() as producer, client.simple_consumer("g", "orders") as receiver:
            producer.send("orders", b"leased")
            (first,) = receiver.receive(1, invisible_ms=600_000, wait_ms=WAIT_MS)
            assert receiver.receive(1, wait_ms=0) == []
            cluster.advance("10m")
            (second,) = receiver.receive(1, wait_ms=WAIT_MS)
    assert (first.body, second.body, second.attempt) == (b"leased", b"leased", 2)


def test_a_day_that_is_skipped_takes_no_broker_off_the_route() -> None:
    with EmbeddedCluster(brokers=2) as cluster, cluster.client() as client:
        client.create_topic("orders", queues=1)
        cluster.advance("1d")
        assert {data.broker for data in client.route("orders").queues} == {"broker-a", "broker-b"}


def test_a_broker_comes_back_with_its_messages_at_its_address() -> None:
    with EmbeddedCluster() as cluster, cluster.client() as client:
        client.create_topic("orders", queues=1)
        with client.producer() as producer:
            producer.send("orders", b"kept")
        address = cluster.brokers["broker-a"]
        cluster.restart("broker-a")
        assert cluster.brokers["broker-a"] == address
        with client.pull_consumer("orders", start="earliest") as consumer:
            assert [each.body for each in consumer.poll(timeout_ms=WAIT_MS)] == [b"kept"]


def test_settings_are_those_of_brokers_and_a_given_directory_is_kept(tmp_path: Path) -> None:
    with EmbeddedCluster(data_dir=tmp_path, settings={"delay_ms_max": 1_000}) as cluster:  # noqa: SIM117
        with cluster.client() as client, client.producer() as producer:
            producer.send("orders", b"kept")
            with pytest.raises(RocketqError, match=r"1,?000"):
                producer.send("orders", b"too late", delay="1h")
    assert (tmp_path / "broker-a").is_dir()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="1 to 26"):
        EmbeddedCluster(brokers=0)
    with EmbeddedCluster() as cluster, pytest.raises(InvalidConfiguration, match="broker-a"):
        cluster.stop("broker-b")
    with pytest.raises(ValueError, match="backwards"):
        MovableClock().advance(-1)


def test_the_first_example_of_the_page_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[0]], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.spark
def test_the_fixtures_of_the_page_work_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(BLOCKS[1])
    (tmp_path / "test_page.py").write_text(BLOCKS[2])
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
