"""How the store takes writes when it is busy, and when it closes."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import (
    BrokerUnavailable,
    SystemBusy,
)
from rocketq_broker.store.store import MessageStore
from rocketq_broker.store.upkeep import housekeeping
from tests.support.store_driver import ANSWER_S, Driver, barrier, batch, config, opened


def test_a_full_inbox_refuses_sends_with_a_time_to_wait(tmp_path: Path) -> None:
    with opened(config(tmp_path, queued_bytes_max=24_000)) as driver:
        driver.create("orders", 1)
        held, go_on = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            held.set()
            assert go_on.wait(ANSWER_S)

        barrier(hold, driver.store)
        assert held.wait(ANSWER_S)
        futures: list[Future[Any]] = [Future() for _ in range(6)]
        for number, future in enumerate(futures):
            driver.store.append("orders", [batch(0, [b"%d" % number * 6000])], future.set_result)
        refused = [future.done() for future in futures]
        waiting = driver.store.statistics().queued_bytes
        go_on.set()
        assert refused == [False, False, False, True, True, True]
        assert isinstance(futures[-1].result(), SystemBusy)
        assert 18_000 < waiting <= 24_000
        for future in futures[:3]:
            future.result(ANSWER_S)
        assert driver.store.statistics().queued_bytes == 0
        assert len(driver.bodies("orders", 0)) == 3


def test_a_send_that_waited_too_long_is_refused_and_not_stored_late(tmp_path: Path) -> None:
    """Its sender has given up and sent it elsewhere."""
    clock = ManualClock()
    with opened(config(tmp_path, queue_wait_ms_max=1000), clock=clock) as driver:
        driver.create("orders", 1)
        held, go_on = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            held.set()
            assert go_on.wait(ANSWER_S)

        barrier(hold, driver.store)
        assert held.wait(ANSWER_S)
        late: Future[Any] = Future()
        fresh: Future[Any] = Future()
        driver.store.append("orders", [batch(0, [b"late"])], late.set_result)
        clock.advance(1001)
        driver.store.append("orders", [batch(0, [b"fresh"])], fresh.set_result)
        go_on.set()
        assert isinstance(late.result(ANSWER_S), SystemBusy)
        assert fresh.result(ANSWER_S).appended[0].offset == 0
        assert driver.bodies("orders", 0) == [b"fresh"]


def test_close_commits_what_was_taken_and_refuses_what_comes_later(tmp_path: Path) -> None:
    store = MessageStore.open(config(tmp_path))
    driver = Driver(store)
    driver.create("orders", 1)
    futures: list[Future[Any]] = [Future() for _ in range(20)]
    for number, future in enumerate(futures):
        store.append("orders", [batch(0, [b"%d" % number])], future.set_result)
    store.close()
    assert [future.result(0).appended[0].offset for future in futures] == list(range(20))
    with pytest.raises(BrokerUnavailable):
        driver.send("orders", 0, [b"late"])
    with opened(config(tmp_path)) as driver:
        assert driver.bodies("orders", 0) == [b"%d" % number for number in range(20)]


def test_a_stop_while_a_task_begins_to_wait_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking whether to stop and waiting for hours."""
    events: list[Interrupted] = []
    all_set, closers = threading.Event(), []

    class Interrupted(threading.Event):
        """An event that, when it is first cleared, lets the whole stop happen before."""

        def __init__(self) -> None:
            super().__init__()
            events.append(self)

        def set(self) -> None:
            super().set()
            if closers and all(each.is_set() for each in events):
                all_set.set()

        def clear(self) -> None:
            if not closers:
                closers.append(threading.Thread(target=store.close))
                closers[0].start()
                assert all_set.wait(ANSWER_S)
            super().clear()

    with monkeypatch.context() as patched:
        patched.setattr(
            housekeeping, "threading", SimpleNamespace(**{**vars(threading), "Event": Interrupted})
        )
        store = MessageStore.open(config(tmp_path, snapshot_log_bytes=1))
    driver = Driver(store)
    with suppress(BrokerUnavailable):
        driver.create("orders", 1)
    assert all_set.wait(ANSWER_S)
    closers[0].join(ANSWER_S)
    assert not closers[0].is_alive()
