"""Staged messages: invisible until they are published, each decided frame once, whatever happens between."""

from __future__ import annotations

from functools import partial
from typing import Any

from rocketq.protocol.frame import FrameKind
from rocketq.protocol.model import Message
from rocketq.protocol.sinks import PublishBatchRequest, Staged, StageName
from rocketq_broker.store.key_index import KeyQuery
from rocketq_broker.store.store import MessageStore
from tests.testbed.crashing_files import CrashingFiles
from tests.testbed.disk import Disk
from tests.testbed.driver import Driver, answer, batch, config, opened
from tests.testbed.workload import end_life

NAME = StageName("etl", 0, "run-1", "broker-a")


def stage(
    driver: Driver, parts: dict[int, list[Any]], name: StageName = NAME, topic: str = "t"
) -> list[Staged]:
    batches = [batch(queue, bodies) for queue, bodies in parts.items()]
    outcome = answer(lambda done: driver.store.append(topic, batches, done, stage=name))
    return list(outcome.staged)


def wanted(staged: list[Staged], name: StageName = NAME) -> PublishBatchRequest:
    frames = tuple(each.log_offset for each in staged)
    return PublishBatchRequest(name.batch, name.run, frames, sum(each.count for each in staged))


def publish(driver: Driver, staged: list[Staged], name: StageName = NAME) -> None:
    answer(partial(driver.store.sinks.publish, name.sink, wanted(staged, name)))


def restarted(disk: Disk, store: MessageStore, settings: Any) -> Driver:
    """As kill -9: what was written is in the page cache, nothing else happens any more."""
    disk.end_session()
    end_life(store)
    again = MessageStore(settings, files=CrashingFiles(disk))
    again.start()
    return Driver(again)


def test_staged_messages_are_seen_by_nobody_until_their_batch_is_published() -> None:
    with opened(config(), CrashingFiles(Disk(1))) as driver:
        driver.create("t", 2)
        driver.send("t", 0, [b"before"])
        first = stage(driver, {0: [Message(b"a", key=b"k")], 1: [b"b", b"c"]})
        dropped = stage(driver, {0: [b"a failed attempt"]})
        second = stage(driver, {0: [b"d"]})
        driver.send("t", 0, [b"between"])
        assert [each.count for each in first] == [1, 2]
        assert driver.bodies("t", 0) == [b"before", b"between"]
        assert driver.bodies("t", 1) == []
        assert dropped[0].log_offset not in {each.log_offset for each in first + second}
        publish(driver, first + second)
        assert driver.bodies("t", 0) == [b"before", b"between", b"a", b"d"]
        assert driver.bodies("t", 1) == [b"b", b"c"]
        driver.store.catch_up_index()
        [found] = driver.store.find(KeyQuery("t", b"k")).slices
        assert (found.header.kind, found.header.published, found.offset) == (FrameKind.MESSAGES, True, 2)
        table = driver.store.sinks.table
        assert (table.stages, table.publishing, table.floor) == ({}, (), None)
        publish(driver, first + second)
        assert driver.ends("t") == [4, 2], "publishing again changes nothing"
