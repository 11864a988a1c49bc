"""Topics come, change and go, groups make progress, and all of it is a fold over the log."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import (
    Conflict,
    InvalidName,
    InvalidRequest,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
)
from rocketq.protocol.documents.broker import (
    AlterTopicRequest,
    CommitOffsetsRequest,
    CreateTopicRequest,
    GroupOffset,
)
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.disk.files import DiskUsage, OSFiles
from rocketq_broker.store.errors import StoreError
from rocketq_broker.store.log import frame_lookup as reader
from rocketq_broker.store.log.consume_queue import ConsumeQueue
from rocketq_broker.store.log.consume_queues import Queues
from tests.support.store_driver import Driver, answer, batch, burst, config, opened


def alter(driver: Driver, name: str, **change: int) -> None:
    answer(partial(driver.store.alter_topic, name, AlterTopicRequest(**change)))


def test_a_created_topic_has_what_was_asked_for_and_is_announced(tmp_path: Path) -> None:
    changes: list[None] = []
    with opened(config(tmp_path), on_change=lambda: changes.append(None)) as driver:
        before = driver.store.data_version
        made = driver.create("orders", 3, perm=4, message_bytes_max=100, retention_ms=5)
        assert (made.name, made.read_queues, made.write_queues, made.perm) == ("orders", 3, 3, 4)
        assert (made.message_bytes_max, made.retention_ms, made.retention_bytes) == (100, 5, None)
        assert driver.store.topic("orders") == made
        assert driver.store.topics() == (made,)
        assert driver.store.data_version != before
    assert len(changes) == 1


def test_a_topic_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        made = driver.create("orders", 2)
        with pytest.raises(Conflict):
            driver.create("orders", 3)
        version = driver.store.data_version
        assert driver.create("orders", 5, if_absent=True) == made
        assert driver.store.data_version == version


@pytest.mark.parametrize("name", ["", "a b", "../../etc", "a/b", "x" * 128, "tópico"])
def test_a_name_that_is_not_legal_reaches_no_file(tmp_path: Path, name: str) -> None:
    with opened(config(tmp_path)) as driver:
        with pytest.raises(InvalidName):
            driver.create(name, 1)
        driver.create("orders", 1)
        with pytest.raises(InvalidName):
            driver.commit(name, "orders", 0, 0)
        assert len(driver.store.topics()) == 1


@pytest.mark.parametrize(
    "request_", [{"queues": 0}, {"queues": 16_385}, {"perm": 1}, {"perm": 8}, {"retention_ms": 0}]
)
def test_a_topic_that_cannot_be_is_refused(tmp_path: Path, request_: dict[str, int]) -> None:
    with opened(config(tmp_path)) as driver:
        with pytest.raises(InvalidRequest):
            driver.create("orders", **request_)
        assert driver.store.topics() == ()


def test_an_altered_topic_grows_and_keeps_what_it_has(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        made = driver.create("orders", 1)
        driver.send("orders", 0, [b"a"])
        alter(driver, "orders", read_queues=3, write_queues=3)
        assert driver.store.topic("orders").incarnation == made.incarnation
        driver.send("orders", 2, [b"b"])
        alter(driver, "orders", write_queues=1)
        with pytest.raises(QueueNotFound):
            driver.send("orders", 2, [b"c"])
        assert driver.bodies("orders", 2) == [b"b"], (
            "what was written can be read until read_queues shrinks too"
        )
        with pytest.raises(TopicNotFound):
            alter(driver, "refunds", perm=4)
    with opened(config(tmp_path)) as driver:
        assert [driver.bodies("orders", queue) for queue in range(3)] == [[b"a"], [], [b"b"]]
        assert driver.store.topic("orders").write_queues == 1


def test_a_recreated_topic_is_another_one_and_empty(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        first = driver.create("orders", 2)
        driver.send("orders", 0, [b"old"])
        driver.commit("billing", "orders", 0, 1)
        driver.delete("orders")
        with pytest.raises(TopicNotFound):
            driver.bodies("orders", 0)
        with pytest.raises(TopicNotFound):
            driver.delete("orders")
        assert driver.progress("billing") == {}
        assert list((tmp_path / "consumequeue").iterdir()) == []
        second = driver.create("orders", 2)
        assert second.incarnation != first.incarnation
        assert driver.ends("orders") == [0, 0]
        assert driver.send("orders", 0, [b"new"]) == 0
    for _ in range(2):
        with opened(config(tmp_path)) as driver:
            assert driver.store.topic("orders") == second
            assert driver.bodies("orders", 0) == [b"new"]
            assert driver.progress("billing") == {}


def test_within_one_group_everything_happens_in_the_order_it_came(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        store = driver.store
        create = partial(store.create_topic, "orders", CreateTopicRequest(read_queues=1, write_queues=1))
        outcomes = burst(
            store,
            [
                partial(store.append, "orders", [batch(0, [b"too early"])]),
                create,
                partial(store.append, "orders", [batch(0, [b"first life"])]),
                partial(store.delete_topic, "orders"),
                partial(store.append, "orders", [batch(0, [b"between"])]),
                create,
                create,
                partial(store.append, "orders", [batch(0, [b"second life"])]),
            ],
        )
        kinds = [type(outcome).__name__ for outcome in outcomes]
        assert kinds == [
            "TopicNotFound", "TopicConfig", "AppendOutcome", "NoneType", "TopicNotFound", "TopicConfig",
            "Conflict", "AppendOutcome",
        ]  # fmt: skip
        assert store.statistics().commits == 2, "the barrier and the burst"
        assert outcomes[2].appended[0].offset == outcomes[7].appended[0].offset == 0
        assert driver.bodies("orders", 0) == [b"second life"]
    # The log tells it in the same order.
    shutil.rmtree(tmp_path / "state")
    with opened(config(tmp_path)) as driver:
        assert driver.bodies("orders", 0) == [b"second life"]


def test_a_pull_that_races_a_deletion_finds_the_messages_or_no_topic(tmp_path: Path) -> None:
    settings = config(tmp_path, open_files_max=8, queue_file_units=2)
    with opened(settings) as driver:
        for round_ in range(25):
            driver.create("orders", 1)
            driver.send("orders", 0, [b"%d" % n for n in range(40)])
            pulling = threading.Event()
            wrong: list[BaseException] = []

            def pull(pulling: threading.Event = pulling, wrong: list[BaseException] = wrong) -> None:
                try:
                    while True:
                        assert len(driver.bodies("orders", 0)) == 40
                        pulling.set()
                except TopicNotFound:
                    return
                except BaseException as error:  # noqa: BLE001
                    wrong.append(error)
                    pulling.set()

            thread = threading.Thread(target=pull)
            thread.start()
            pulling.wait()
            driver.delete("orders")
            thread.join()
            assert wrong == [], f"in round {round_}"


def test_a_pull_that_finds_its_files_gone_looks_for_the_topic_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same race, at the one moment that matters: between finding a queue and reading it."""
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 1)
        driver.send("orders", 0, [b"x"])
    with opened(config(tmp_path)) as driver:
        locate = reader.locate

        def overtaken(*arguments: Any) -> Any:
            monkeypatch.setattr(reader, "locate", locate)
            driver.delete("orders")
            return locate(*arguments)

        monkeypatch.setattr(reader, "locate", overtaken)
        with pytest.raises(TopicNotFound):
            driver.store.pull("orders", 0, 0, max_bytes=1)


def test_housekeeping_that_meets_a_deletion_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[StoreError] = []
    settings = config(tmp_path, segment_bytes=4096, retention=RetentionPolicy(retention_bytes=4096))
    with opened(settings, on_fault=faults.append) as driver:
        for topic in ("orders", "refunds"):
            driver.create(topic, 1, retention_bytes=1000)
            for number in range(10):
                driver.send(topic, 0, [b"%d" % number + bytes(900)])
    with opened(settings, on_fault=faults.append) as driver:
        driver.send("refunds", 0, [b"x"])
        usage = OSFiles.usage

        def overtaken(files: OSFiles) -> DiskUsage:
            driver.delete("orders")
            return usage(files)

        all_queues = Queues.all

        def overtaken_later(queues: Queues) -> list[ConsumeQueue]:
            found = all_queues(queues)
            driver.delete("refunds")
            return found

        monkeypatch.setattr(OSFiles, "usage", overtaken)
        monkeypatch.setattr(Queues, "all", overtaken_later)
        assert driver.store.retain().remove
    assert faults == []


# --- groups --------------------------------------------------------------------------------


def test_progress_only_advances_unless_it_is_reset(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 2)
        driver.send("orders", 0, [b"x"] * 10)
        assert driver.progress("billing") == {}
        for offset, stands in ((0, 0), (7, 7), (3, 7), (10, 10)):
            driver.commit("billing", "orders", 0, offset)
            assert driver.progress("billing") == {("orders", 0): stands}
        driver.commit("billing", "orders", 0, 2, reset=True)
        assert driver.progress("billing") == {("orders", 0): 2}
        assert driver.progress("audit") == {}
    with opened(config(tmp_path)) as driver:
        assert driver.progress("billing") == {("orders", 0): 2}
        assert driver.store.groups() == ("billing",)


def test_a_commit_answers_where_the_group_stands_now(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 2)
        driver.send("orders", 0, [b"x"] * 5)
        driver.commit("billing", "orders", 0, 5)
        asked = CommitOffsetsRequest((GroupOffset("orders", 0, 1), GroupOffset("orders", 1, 0)))
        found = answer(partial(driver.store.consumer_groups.commit_offsets, "billing", asked))
        assert found.offsets == (GroupOffset("orders", 0, 5), GroupOffset("orders", 1, 0))


def test_a_commit_beyond_the_queue_or_of_no_queue_changes_nothing_at_all(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 2)
        driver.send("orders", 0, [b"x"] * 5)
        good = GroupOffset("orders", 0, 3)
        for bad, error in (
            (GroupOffset("orders", 0, 6), OffsetOutOfRange),
            (GroupOffset("orders", 0, -1), OffsetOutOfRange),
            (GroupOffset("orders", 2, 0), QueueNotFound),
            (GroupOffset("refunds", 0, 0), TopicNotFound),
        ):
            with pytest.raises(error):
                answer(
                    partial(
                        driver.store.consumer_groups.commit_offsets,
                        "billing",
                        CommitOffsetsRequest((good, bad)),
                    )
                )
        assert driver.progress("billing") == {}
        assert driver.store.statistics().topics == 1


def test_a_commit_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 1)
        driver.send("orders", 0, [b"x"] * 5)
        driver.commit("billing", "orders", 0, 3)
        end = driver.store.statistics().log_end
        driver.commit("billing", "orders", 0, 3)
        driver.commit("billing", "orders", 0, 2)
        driver.commit("billing", "orders", 0, 3, reset=True)
        assert driver.store.statistics().log_end == end


def test_the_progress_of_a_group_can_be_asked_by_topic(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        for topic in ("orders", "refunds"):
            driver.create(topic, 1)
            driver.commit("billing", topic, 0, 0)
        assert driver.store.group_offsets("billing", "refunds").offsets == (GroupOffset("refunds", 0, 0),)
        driver.delete("refunds")
        assert driver.progress("billing") == {("orders", 0): 0}
