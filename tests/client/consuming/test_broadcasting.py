"""Broadcasting: every member gets every message, and keeps its own progress in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketq import Client, Consumer, InvalidConfiguration, LocalCluster
from tests.client.consuming.groups_support import fill, numbers, take
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


def member(mq: Client, topic: str, file: Path, **settings: str) -> Consumer:
    return mq.consumer("broadcast", [topic], broadcasting=True, offsets_file=file, **settings)


def test_all_members_get_all_messages(mq: Client, topic: str, tmp_path: Path) -> None:
    fill(mq, topic, 100)
    with member(mq, topic, tmp_path / "1") as one, member(mq, topic, tmp_path / "2") as two:
        assert numbers(take(one, 100)) == numbers(take(two, 100)) == list(range(100))
        assert set(one.owned()) == set(two.owned())


def test_a_member_goes_on_where_its_file_says(mq: Client, topic: str, tmp_path: Path) -> None:
    fill(mq, topic, 100)
    with member(mq, topic, tmp_path / "offsets") as first:
        read = take(first, 60)
    with member(mq, topic, tmp_path / "offsets") as second:
        read += take(second, 40)
        assert second.poll(timeout_ms=0) == []
    assert numbers(read) == list(range(100))
    with member(mq, topic, tmp_path / "another", start="latest") as third:
        assert third.poll(timeout_ms=0) == []
        fill(mq, topic, 5, first=100)
        assert numbers(take(third, 5)) == list(range(100, 105))


def test_the_brokers_keep_no_progress_of_it(mq: Client, topic: str, tmp_path: Path) -> None:
    fill(mq, topic, 10)
    with member(mq, topic, tmp_path / "offsets") as first:
        take(first, 10)
        first.commit()
        assert sum(first.owned().values()) == 10
    with member(mq, topic, tmp_path / "other") as second:
        assert numbers(take(second, 10)) == list(range(10))


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    mq: Client, topic: str, tmp_path: Path
) -> None:
    fill(mq, topic, 20)
    with member(mq, topic, tmp_path / "offsets") as first:
        take(first, 20)
    mq.delete_topic(topic)
    fill(mq, topic, 30)
    with member(mq, topic, tmp_path / "offsets") as second:
        assert numbers(take(second, 30)) == list(range(30))


def test_a_queue_that_appears_later_is_read_too(mq: Client, topic: str, tmp_path: Path) -> None:
    fill(mq, topic, 10, queues=1)
    with member(mq, topic, tmp_path / "offsets") as consumer:
        mq.alter_topic(topic, read_queues=2, write_queues=2)
        wait_until(lambda: len(consumer.owned()) == 4)


def test_a_file_belongs_to_one_member_at_a_time(mq: Client, topic: str, tmp_path: Path) -> None:
    fill(mq, topic, 0)
    with (
        member(mq, topic, tmp_path / "offsets"),
        pytest.raises(InvalidConfiguration, match="another member uses it"),
    ):
        member(mq, topic, tmp_path / "offsets")
    member(mq, topic, tmp_path / "offsets").close()
