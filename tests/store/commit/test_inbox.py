"""Waking the log writer: a wait that has a limit ends, whatever came before it."""

from __future__ import annotations

import threading
from pathlib import Path

from rocketq_broker.store.commit.inbox import Inbox
from rocketq_broker.store.config import StoreConfig
from tests.support.conditions import WAIT_S


def test_a_short_wait_ends_after_a_wake_up_was_taken(tmp_path: Path) -> None:
    inbox, found = Inbox(StoreConfig(tmp_path)), set[bool]()

    def wait_again_and_again() -> None:
        for _ in range(50_000):
            inbox.wake()
            assert inbox.wait()
            found.add(inbox.wait(1e-9))

    thread = threading.Thread(target=wait_again_and_again, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "it waits for ever"
    assert found == {False}


def test_a_writer_that_waits_is_woken_once_by_many_callers(tmp_path: Path) -> None:
    inbox, woken = Inbox(StoreConfig(tmp_path)), threading.Event()

    def wait() -> None:
        if inbox.wait():
            woken.set()

    writer = threading.Thread(target=wait, daemon=True)
    writer.start()
    callers = [threading.Thread(target=inbox.wake) for _ in range(16)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert woken.wait(WAIT_S)
    writer.join()
    while inbox.wait(0):
        # One that came after the writer was awake.
        continue
    assert not inbox.wait(0)
