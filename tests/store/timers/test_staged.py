"""Delayed messages of an exactly-once sink: staged, decided, held by the timer, delivered once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rocketq.clock import ManualClock
from rocketq.model import Message
from rocketq.protocol.documents.sinks import Staged
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import NO_TIME, with_times
from rocketq_broker.store.commit.delayed_batches import delayed_batches
from tests.support.staging import NAME, publish
from tests.support.store_driver import answer
from tests.support.timed_store import Timed, timed


def stage(driver: Timed, times: list[int]) -> list[Staged]:
    """Stage a batch of messages with these delivery times, each named by its place in the batch."""
    batch = from_messages([Message(b"%d" % row) for row in range(len(times))])
    at = np.array(times)
    held = delayed_batches(0, with_times(batch, at), at, whole=True)
    return list(answer(lambda done: driver.store.append("t", held, done, stage=NAME)).staged)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver(tmp_path: Path, clock: ManualClock) -> Iterator[Timed]:
    with timed(tmp_path, clock) as made:
        made.create("t", 1)
        yield made


def test_staged_messages_wait_for_their_decision_and_then_for_their_time(driver: Timed) -> None:
    now = driver.now_ms
    staged = stage(driver, [now + 2_000, NO_TIME, now + 1_000])
    assert len(staged) == 1
    driver.pass_time(1_500)
    assert driver.bodies("t", 0) == []
    publish(driver, staged)
    driver.settle()
    assert driver.bodies("t", 0) == [b"1", b"2"]
    driver.pass_time(500)
    assert driver.bodies("t", 0) == [b"1", b"2", b"0"]


def test_a_start_between_decision_and_delivery_delivers_each_once(tmp_path: Path, clock: ManualClock) -> None:
    with timed(tmp_path, clock) as driver:
        driver.create("t", 1)
        publish(driver, stage(driver, [driver.now_ms + 1_000] * 3))
        assert driver.store.sinks.table.has_published((NAME.sink, NAME.batch, NAME.run))
    for _ in range(2):
        (tmp_path / "state" / "snapshot").unlink()
        with timed(tmp_path, clock) as driver:
            driver.pass_time(1_000)
            assert driver.bodies("t", 0) == [b"0", b"1", b"2"]
            assert driver.store.timers.table.outstanding == 0


def test_staged_messages_that_are_dropped_are_never_delivered(driver: Timed) -> None:
    stage(driver, [driver.now_ms + 1_000])
    answer(partial(driver.store.sinks.drop, next(iter(driver.store.sinks.table.stages.values()))))
    driver.pass_time(10_000)
    assert driver.bodies("t", 0) == []
