"""Seeded work for a store: a run of groups, each of random operations, until the disk gives out.

Topic names, groups and queue counts are few, so that operations meet; bodies are
numbered, so that each is known wherever it turns up.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketq.errors import RocketqError
from rocketq.model import FlushMode
from rocketq.protocol.documents.broker import (
    AlterTopicRequest,
    CommitOffsetsRequest,
    CreateTopicRequest,
    GroupOffset,
)
from rocketq_broker.store.config import RetentionPolicy, StoreConfig
from rocketq_broker.store.errors import LogFailed, StoreError
from rocketq_broker.store.recovery.recovery import RecoveryReport
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import KINDS, Disk, Fault
from tests.support.ledger import Alter, BrokenPromise, Commit, Create, Delete, Entry, Ledger, Send
from tests.support.store_driver import Call, Driver, batch, burst, config

TOPICS = ("alpha", "beta", "gamma")
GROUPS = ("billing", "audit")
QUEUES_MAX = 3


def small_config(rng: random.Random, flush: FlushMode) -> StoreConfig:
    """A store whose segments, files and limits are small enough to be met all the time."""
    return config(
        flush=flush,
        segment_bytes=rng.choice((4096, 8192, 20_000)),
        queue_file_units=rng.choice((3, 16, 1000)),
        merge_bytes=rng.choice((0, 1024, 16 << 10)),
        group_bytes_max=rng.choice((2000, 1 << 20)),
        open_files_max=8,
        retention=RetentionPolicy(retention_bytes=rng.choice((None, 15_000))),
    )


@dataclass(slots=True)
class Worker:
    """Makes random operations; the seed decides all of them."""

    rng: random.Random
    flush: FlushMode
    ledger: Ledger = field(default_factory=Ledger)
    segments_removed: int = 0
    _numbers: int = 0

    # --- making operations -----------------------------------------------------------

    def entry(self) -> Entry:
        rng = self.rng
        topic = rng.choice(TOPICS)
        match rng.choices(("send", "commit", "create", "alter", "delete"), (70, 15, 8, 3, 2))[0]:
            case "send":
                parts = tuple(
                    (rng.randrange(QUEUES_MAX), self._bodies()) for _ in range(rng.choice((1, 1, 2, 4)))
                )
                return Send(topic, parts)
            case "commit":
                offset = rng.choice((0, 1, 2, 3, 5, 8, 13, 30))
                return Commit(
                    rng.choice(GROUPS), topic, rng.randrange(QUEUES_MAX), offset, rng.random() < 0.2
                )
            case "create":
                return Create(topic, rng.randint(1, QUEUES_MAX))
            case "alter":
                return Alter(topic, QUEUES_MAX)
            case _:
                return Delete(topic)

    def _bodies(self) -> tuple[bytes, ...]:
        made = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 5, 20))):
            self._numbers += 1
            made.append(b"m%d." % self._numbers + bytes(self.rng.choice((0, 10, 100, 700, 3000))))
        return tuple(made)

    # --- doing them ---------------------------------------------------------------------

    def work(self, store: MessageStore, groups: int) -> bool:
        """Do some groups of operations; return False as soon as the store refuses to go on."""
        for _ in range(groups):
            entries = [self.entry() for _ in range(self.rng.choice((1, 1, 2, 4, 9)))]
            outcomes = burst(store, [_call(store, entry) for entry in entries])
            for entry, outcome in zip(entries, outcomes, strict=True):
                entry.outcome = outcome
                self.ledger.enter(entry)
            if self.flush is FlushMode.SYNC:
                self.ledger.flushed()
            try:
                if self.rng.random() < 0.15:
                    store.flush()
                    self.ledger.flushed()
                if self.rng.random() < 0.15:
                    store.take_snapshot()
                    self.ledger.flushed()
                if self.rng.random() < 0.1:
                    removed = store.retain().remove
                    self.segments_removed += removed
                    if removed:
                        # Nothing is removed before what is left of the log is on disk.
                        self.ledger.flushed()
            except (OSError, RocketqError):
                return False
        return True


def _call(store: MessageStore, entry: Entry) -> Call:
    match entry:
        case Send(topic, parts):
            batches = [batch(queue, bodies) for queue, bodies in parts]
            return lambda done: store.append(topic, batches, done)
        case Create(topic, queues):
            wanted = CreateTopicRequest(read_queues=queues, write_queues=queues, if_absent=True)
            return lambda done: store.create_topic(topic, wanted, done)
        case Alter(topic, queues):
            change = AlterTopicRequest(read_queues=queues, write_queues=queues)
            return lambda done: store.alter_topic(topic, change, done)
        case Delete(topic):
            return lambda done: store.delete_topic(topic, done)
        case Commit(group, topic, queue, offset, reset):
            asked = CommitOffsetsRequest((GroupOffset(topic, queue, offset),), reset)
            return lambda done: store.consumer_groups.commit_offsets(group, asked, done)


@dataclass(slots=True)
class Lives:
    """One disk, one ledger, and a store that lives on it again and again."""

    seed: int
    flush: FlushMode
    disk: Disk = field(init=False)
    rng: random.Random = field(init=False)
    worker: Worker = field(init=False)
    settings: StoreConfig = field(init=False)
    reports: list[RecoveryReport] = field(default_factory=list)
    begin_when_cut: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.disk = Disk(self.seed)
        self.worker = Worker(random.Random(self.seed + 1), self.flush)
        self.settings = small_config(self.rng, self.flush)

    def open(self, on_fault: Callable[[StoreError], None] = lambda error: None) -> Driver:
        """Start a store on the disk as it is."""
        store = MessageStore.open(self.settings, files=CrashingFiles(self.disk), on_fault=on_fault)
        self.reports.append(store.report)
        return Driver(store)

    def live_until_cut(self, operations_max: int = 120, groups: int = 12) -> bytes:
        """Work until the power goes at a random operation; return the log as it then was written."""
        self.disk.cut_at = self.disk.operations + self.rng.randint(1, operations_max)
        try:
            driver = self.open()
        except (OSError, LogFailed):
            self.begin_when_cut = self.disk.log_begin()
            return self.disk.log_bytes()
        if self.worker.work(driver.store, groups) and self.rng.random() < 0.3:
            end_life(driver.store)
        self.disk.cut_power()
        written = self.disk.log_bytes()
        self.begin_when_cut = self.disk.log_begin()
        end_life(driver.store)
        return written

    def live_with_fault(self, groups: int = 12) -> Fault:
        """Work while one operation of the disk fails; end by a power cut or, as likely, by kill -9."""
        fault = self.disk.fail(
            self.rng.choice(KINDS),
            self.rng.choice((errno.ENOSPC, errno.EIO)),
            nth=self.rng.choice((1, 2, 3, 5, 8, 13, 21)),
            path=self.rng.choice(("", "", "commitlog", "consumequeue", "state")),
            share=self.rng.random(),
            evict=self.rng.random() < 0.5,
        )
        faults: list[StoreError] = []
        try:
            driver = self.open(faults.append)
        except (OSError, LogFailed):
            return fault
        self.worker.work(driver.store, groups)
        if self.rng.random() < 0.5:
            self.disk.cut_power()
        else:
            self.disk.end_session()
        end_life(driver.store)
        return fault

    def restart_and_check(self, written: bytes | None = None) -> None:
        """Power on, recover, hold the store against the ledger, and go on from what it has."""
        if not self.disk.is_on:
            self.disk.restart()
        self.disk.faults.clear()
        driver = self.open()
        try:
            kept, begin = self.disk.log_bytes(), self.begin_when_cut
            if written is not None and kept[begin:] != written[begin : len(kept)]:
                raise BrokenPromise("the recovered log is no beginning of the one that was written")
            self.worker.ledger.check(driver)
            self.worker.ledger.adopt(driver)
        finally:
            driver.store.close()


def end_life(store: MessageStore) -> None:
    """Close a store whose disk may be gone, so that its threads end."""
    try:
        store.close()
    except (OSError, RocketqError):
        return
