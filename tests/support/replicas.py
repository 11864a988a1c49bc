"""Two stores of one broker group without a network: what the replication service does, by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocketq.errors.replication_errors import NotMaster
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.replica.operations import ReplicaHooks, ReplicaOperations
from rocketq_broker.store.store import MessageStore
from tests.support.store_driver import ANSWER_S, Call, Driver, config

#: What a follower says to senders.
REFUSAL = NotMaster("group-1", 1)


class Member(Driver):
    """A store that is a replica; `moved` is notified when its log moves."""

    def __init__(self, store: MessageStore, moved: threading.Condition, waits: bool) -> None:
        super().__init__(store)
        self.moved = moved
        #: Whether it waits for slaves when it is in office.
        self.waits = waits

    def handed(self, call: Call) -> Future[Any]:
        """Hand an operation over, and wait until it is written or answered."""
        before, done = self.end, Future[Any]()

        def answered(result: Any) -> None:
            with self.moved:
                done.set_result(result)
                self.moved.notify_all()

        call(answered)
        with self.moved:
            assert self.moved.wait_for(lambda: self.end > before or done.done(), ANSWER_S)
        return done

    @property
    def replica(self) -> ReplicaOperations:
        assert self.store.replica is not None
        return self.store.replica

    @property
    def end(self) -> int:
        return self.replica.view().end

    def lead(self, epoch: int) -> int:
        self.replica.keep_standing("group-1", epoch)
        return self.replica.take_office(epoch, waits=self.waits)

    def step_down(self) -> None:
        self.replica.leave_office(REFUSAL)

    def fetch(self, master: Member, bytes_max: int = 1 << 20) -> int:
        """Fetch once; return how many bytes came."""
        raw = master.replica.frames(self.end, bytes_max)
        self.replica.append_frames(raw)
        return raw.size

    def catch_up(self, master: Member, bytes_max: int = 1 << 20, confirm: bool = True) -> None:
        """Fetch until the logs are equal; then both confirm it."""
        while self.fetch(master, bytes_max):
            pass
        if confirm:
            master.replica.confirm(self.end)
            self.replica.confirm(self.end)


@contextmanager
def member(
    settings: StoreConfig, files: Files | None = None, *, waits: bool = True, **hooks: Any
) -> Iterator[Member]:
    """A started store of a replica; it follows until it is told to lead, and is closed in the end."""
    made = open_member(settings, files, waits=waits, **hooks)
    try:
        yield made
    finally:
        made.store.close()


def open_member(
    settings: StoreConfig, files: Files | None = None, *, waits: bool = True, **hooks: Any
) -> Member:
    """Open the store of a replica."""
    moved = threading.Condition()

    def notify() -> None:
        with moved:
            moved.notify_all()

    given = ReplicaHooks(on_log_moved=notify, refusal=REFUSAL, **hooks)
    return Member(MessageStore.open(settings, files=files, replica=given), moved, waits)


@contextmanager
def pair(directory: Path, **settings: Any) -> Iterator[tuple[Member, Member]]:
    """A master in epoch 1 and a follower, which wait for nobody in office."""
    with (
        member(config(directory / "a", **settings), waits=False) as master,
        member(config(directory / "b", **settings), waits=False) as slave,
    ):
        master.lead(1)
        yield master, slave


def log_files(directory: Path) -> dict[str, bytes]:
    """The segments of a log by name."""
    return {each.name: each.read_bytes() for each in sorted((directory / "commitlog").iterdir())}
