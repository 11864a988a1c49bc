"""The three ends of the log: what is written, durable and confirmed, and who sees what when."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import BrokerUnavailable, TopicNotFound
from rocketq.model import FlushMode, SendStatus
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.frame import peek
from rocketq_broker.store.commit.ends import LogEnds, rule_of
from rocketq_broker.store.errors import CorruptLog
from rocketq_broker.store.log.commit_log import segment_name
from rocketq_broker.store.state.state import State
from tests.support.store_driver import ANSWER_S, Driver, answer, batch, config, opened


class Held:
    """A confirm rule that a test moves by hand, as replicas would; it knows how far the writer is."""

    def __init__(self) -> None:
        self.at = 1 << 60
        self._written = 0
        self._moved = threading.Condition()

    def __call__(self, ends: LogEnds) -> int:
        with self._moved:
            self._written = ends.written
            self._moved.notify_all()
        return min(self.at, ends.written)

    def hold(self) -> int:
        """Confirm nothing from here on; return the log offset."""
        self.at = self._written
        return self.at

    def until_written(self, beyond: int) -> int:
        """Wait until a group was written behind a log offset; return where it ends."""
        with self._moved:
            assert self._moved.wait_for(lambda: self._written > beyond, ANSWER_S)
            return self._written


def sent(driver: Driver, *bodies: bytes) -> Future[Any]:
    """Hand an append over without waiting for its answer."""
    future: Future[Any] = Future()
    driver.store.append("orders", [batch(0, bodies)], future.set_result)
    return future


@pytest.mark.parametrize("flush", list(FlushMode))
def test_the_next_group_is_written_while_an_earlier_one_waits(tmp_path: Path, flush: FlushMode) -> None:
    held = Held()
    with opened(config(tmp_path, flush=flush), rule=held) as driver:
        driver.create("orders")
        begin = held.hold()
        first = sent(driver, b"a", b"b")
        after_first = held.until_written(begin)
        second = sent(driver, b"c")
        held.until_written(after_first)
        assert not first.done()
        assert not second.done()
        assert driver.ends("orders") == [0, 0, 0, 0], "readers see nothing that is not confirmed"

        held.at = after_first
        driver.store.confirm()
        assert first.result(ANSWER_S).status is SendStatus.SEND_OK
        assert not second.done()
        assert driver.bodies("orders", 0) == [b"a", b"b"]

        held.at = 1 << 60
        driver.store.confirm()
        assert second.result(ANSWER_S).appended[0].offset == 2, "planned behind the group that was waiting"
        assert driver.bodies("orders", 0) == [b"a", b"b", b"c"]


def test_a_topic_is_there_for_the_writer_before_readers_see_it(tmp_path: Path) -> None:
    held = Held()
    with opened(config(tmp_path), rule=held) as driver:
        begin = held.hold()
        made: Future[Any] = Future()
        driver.store.create_topic("orders", CreateTopicRequest(), made.set_result)
        held.until_written(begin)
        with pytest.raises(TopicNotFound):
            driver.store.topic("orders")
        appended = sent(driver, b"a")
        held.at = 1 << 60
        # The append may still be in the inbox; a later change is answered behind it.
        answer(partial(driver.store.create_topic, "next", CreateTopicRequest()))
        assert made.result(ANSWER_S).name == "orders"
        assert appended.result(ANSWER_S).appended[0].offset == 0


def test_what_was_never_confirmed_is_refused_when_the_store_closes(tmp_path: Path) -> None:
    held = Held()
    with opened(config(tmp_path), rule=held) as driver:
        driver.create("orders")
        begin = held.hold()
        future = sent(driver, b"a")
        held.until_written(begin)
    assert isinstance(future.result(ANSWER_S), BrokerUnavailable)
    with opened(config(tmp_path)) as again:
        assert again.bodies("orders", 0) == [b"a"], "it is in the log; nobody was told that it is not"


def test_a_snapshot_speaks_of_confirmed_messages_only(tmp_path: Path) -> None:
    held = Held()
    with opened(config(tmp_path), rule=held) as driver:
        driver.create("orders")
        driver.send("orders", 0, [b"a"])
        begin = held.hold()
        sent(driver, b"b")
        held.until_written(begin)
        driver.store.take_snapshot()
        assert driver.store.statistics().snapshot_position == begin
    with opened(config(tmp_path)) as again:
        assert again.bodies("orders", 0) == [b"a", b"b"]
        again.send("orders", 0, [b"c"])
        assert again.bodies("orders", 0) == [b"a", b"b", b"c"]


def test_each_flush_mode_confirms_at_its_own_end() -> None:
    ends = LogEnds(State(), 0, 0, written=30, durable=20, confirmed=10)
    assert rule_of(FlushMode.ASYNC)(ends) == 30
    assert rule_of(FlushMode.SYNC)(ends) == 20


def epochs(directory: Path) -> list[int]:
    """The epochs of all frames of the first segment, in order."""
    data = (directory / "commitlog" / segment_name(0)).read_bytes()
    found, at = [], 0
    while at < len(data):
        header = peek(data[at:])
        found.append(header.epoch)
        at += header.size
    return found


def test_frames_carry_the_epoch_and_it_never_falls(tmp_path: Path) -> None:
    for epoch in (0, 3, 2):
        with opened(config(tmp_path, epoch=epoch)) as driver:
            if epoch == 0:
                driver.create("orders")
            driver.send("orders", 0, [b"x"])
    found = epochs(tmp_path)
    assert found == sorted(found)
    assert found[-1] == 3, "an epoch below that of the log does not count"


def test_a_log_whose_epoch_falls_is_refused(tmp_path: Path) -> None:
    with opened(config(tmp_path, epoch=5)) as driver:
        driver.create("orders")
        driver.send("orders", 0, [b"x"])
    kept = (tmp_path / "commitlog" / segment_name(0)).read_bytes()
    with opened(config(tmp_path / "other", epoch=4)) as driver:
        driver.create("orders")
        driver.send("orders", 0, [b"x"])
        driver.send("orders", 0, [b"y"])
    newer = (tmp_path / "other" / "commitlog" / segment_name(0)).read_bytes()
    assert len(newer) > len(kept)
    mixed = tmp_path / "mixed" / "commitlog"
    mixed.mkdir(parents=True)
    # The last frame of the one behind all frames of the other: both sound, and the epoch falls.
    (mixed / segment_name(0)).write_bytes(kept + newer[len(kept) :])
    with pytest.raises(CorruptLog, match="epoch 4 is below 5"), opened(config(tmp_path / "mixed")):
        pass
