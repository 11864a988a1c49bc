"""Two stores of a group under random sends, fetches, elections, retention, kills and power cuts.

What a master and a slave do about each other is decided by the replication's own classes. Confirmed is what
both hold. Then: what a reader has seen at any member stays as it was seen, the logs are equal byte for byte
up to the confirmed end, and in the end every acknowledged message is on both.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rocketq.errors import RocketqError
from rocketq.model import FlushMode
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq_broker.replication.fetching import compared
from rocketq_broker.replication.group_record import ReplicaId
from rocketq_broker.replication.slave_role import Append, BeginAt, Confirmed, CutTo, SlaveRole
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.store import AppendOutcome
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.examples import examples
from tests.support.replicas import Member, open_member
from tests.support.store_driver import batch, config
from tests.support.workload import end_life

NAMES = st.sampled_from(["a", "b"])
SIZES = st.lists(st.integers(1, 700), min_size=1, max_size=4)
QUEUES = 2


class Replicas(RuleBasedStateMachine):
    """The group; `flush` is set by the subclass."""

    flush: FlushMode

    def __init__(self) -> None:
        super().__init__()
        self.settings = config(
            flush=self.flush, segment_bytes=4096, queue_file_units=40,
            retention=RetentionPolicy(retention_bytes=12_000),
        )  # fmt: skip
        self.disks = {name: Disk(seed) for seed, name in enumerate("ab")}
        self.members: dict[str, Member] = {}
        self.epoch = 0
        self.leader = ""
        self.confirmed = 0
        #: What each member was told of it.
        self.told = dict.fromkeys("ab", 0)
        #: What each has said that it holds.
        self.promised = dict.fromkeys("ab", 0)
        self.number = 0
        self.waiting: list[tuple[tuple[int, ...], list[bytes], Future[Any]]] = []
        #: What anybody has seen or been acknowledged, by queue and offset.
        self.seen: dict[tuple[int, int], bytes] = {}
        for name in "ab":
            self._open(name)
        self.elect("a")
        self._lead.handed(
            lambda done: self._lead.store.create_topic("orders", CreateTopicRequest(2, 2), done)
        )

    # --- what the service does ----------------------------------------------------------

    def _open(self, name: str) -> None:
        self.members[name] = open_member(self.settings, CrashingFiles(self.disks[name]))

    @property
    def _lead(self) -> Member:
        return self.members[self.leader]

    def _other(self, name: str) -> str:
        return "b" if name == "a" else "a"

    def _confirm(self, end: int, *names: str) -> None:
        self.confirmed = max(self.confirmed, end)
        for name in names:
            self.told[name] = max(self.told[name], end)
            self.members[name].replica.confirm(end)
        self._take_answers()

    def _take_answers(self) -> None:
        """Take what is acknowledged: from now on it has to stay."""
        for queues, bodies, done in [each for each in self.waiting if each[2].done()]:
            outcome = done.result()
            if isinstance(outcome, AppendOutcome):
                for queue, place in zip(queues, outcome.appended, strict=True):
                    for row, body in enumerate(bodies):
                        self._see(queue, place.offset + row, body)
        self.waiting = [each for each in self.waiting if not each[2].done()]

    def _see(self, queue: int, offset: int, body: bytes) -> None:
        assert self.seen.setdefault((queue, offset), body) == body, f"offset {offset} has changed"

    def _restart(self, name: str) -> None:
        end_life(self.members[name].store)
        if name == self.leader:
            self.leader = ""
            self.waiting.clear()
        if not self.disks[name].is_on:
            self.disks[name].restart()
        self._open(name)
        kept = self.members[name].replica.kept
        self.told[name] = kept.confirmed
        assert self.members[name].replica.view().held >= self.promised[name], "a promise is broken"

    # --- rules --------------------------------------------------------------------------

    @precondition(lambda self: self.leader)
    @rule(queues=st.sampled_from([(0,), (1,), (0, 1)]), sizes=SIZES, times=st.integers(1, 4))
    def send(self, queues: tuple[int, ...], sizes: list[int], times: int) -> None:
        for _ in range(times):
            self._send(queues, sizes)

    def _send(self, queues: tuple[int, ...], sizes: list[int]) -> None:
        """Append once. An append for two queues has two frames, and may begin a segment between them."""
        self.number += 1
        bodies = [b"%d/%d " % (self.number, row) + bytes(size) for row, size in enumerate(sizes)]
        if not self._lead.store.has_topic("orders"):
            return
        batches = [batch(queue, bodies) for queue in queues]
        done = self._lead.handed(lambda answer: self._lead.store.append("orders", batches, answer))
        self.waiting.append((queues, bodies, done))

    @precondition(lambda self: self.leader)
    @rule(bytes_max=st.sampled_from([1, 1500, 9000]), is_told=st.booleans(), times=st.integers(1, 4))
    def fetch(self, bytes_max: int, is_told: bool, times: int) -> None:
        for _ in range(times):
            self._fetch(bytes_max, is_told)

    def _fetch(self, bytes_max: int, is_told: bool) -> None:
        """One fetch of the slave, and its answer; the next fetch says what it holds then."""
        name = self._other(self.leader)
        slave, master = self.members[name], self._lead
        role = SlaveRole(self.epoch, ReplicaId(1, self.leader), 0)
        view = slave.replica.view()
        answer = compared(role.place(view), master.replica.view(), self.confirmed)
        match role.step(answer, view, Confirmed(self.told[name], self.epoch)):
            case Append():
                slave.replica.append_frames(master.replica.frames(view.end, bytes_max))
                for each in (self.leader, name):
                    self.promised[each] = self.members[each].replica.view().held
                self._confirm(min(self.promised.values()), self.leader, *([name] if is_told else []))
            case CutTo(end, lost):
                assert not lost
                self.promised[name] = min(self.promised[name], end)
                slave.replica.cut(end)
            case BeginAt(begin, before, lost):
                assert not lost
                self.promised[name] = 0
                slave.replica.begin_at(begin, before)

    @rule(name=NAMES)
    def elect(self, name: str) -> None:
        view = self.members[name].replica.view()
        if view.held < self.confirmed or name == self.leader:
            return
        if self.leader:
            self._lead.step_down()
            self._take_answers()
            self.waiting.clear()
        self.epoch += 1
        self.leader = name
        assert self._lead.lead(self.epoch) == view.end

    @rule(name=NAMES, what=st.sampled_from(["snapshot", "checkpoint", "retain"]))
    def upkeep(self, name: str, what: str) -> None:
        member = self.members[name]
        match what:
            case "snapshot":
                member.store.take_snapshot()
            case "checkpoint":
                member.replica.keep_confirmed(self.told[name], self.epoch)
            case _:
                member.store.flush()
                member.store.retain()

    @rule(name=NAMES, how=st.sampled_from(["stop", "kill", "cut power"]))
    def restart(self, name: str, how: str) -> None:
        if how == "stop":
            self.members[name].store.close()
        elif how == "cut power" and self.flush is FlushMode.SYNC:
            self.disks[name].cut_power()
        else:
            self.disks[name].end_session()
        self._restart(name)

    @precondition(lambda self: self.flush is FlushMode.SYNC and self.leader)
    @rule(name=NAMES, after=st.integers(1, 25), data=st.data())
    def cut_power_meanwhile(self, name: str, after: int, data: st.DataObject) -> None:
        """The power goes during what a member does."""
        disk = self.disks[name]
        disk.cut_at = disk.operations + after
        work = data.draw(st.sampled_from(["fetch", "send", "elect", "snapshot", "retain"]))
        try:
            match work:
                case "fetch":
                    self._fetch(9000, True)
                case "send":
                    self._send((0, 1), [300])
                case "elect":
                    self.elect(name)
                case _:
                    self.upkeep(name, work)
        except (OSError, RocketqError):
            assert not disk.is_on
        disk.cut_power()
        self._restart(name)

    # --- what must hold -----------------------------------------------------------------

    def check_invariants(self, *args: Any, **kwargs: Any) -> None:
        super().check_invariants(*args, **kwargs)
        for member in self.members.values():
            self._look(member)
        self._compare()

    def _look(self, member: Member) -> None:
        if not member.store.has_topic("orders"):
            return
        for queue in range(QUEUES):
            for each in member.slices("orders", queue):
                for row, body in enumerate(each.batch.column("body").to_pylist()):
                    self._see(queue, each.offset + row, body)

    def _compare(self) -> None:
        views = [each.replica.view() for each in self.members.values()]
        begin = max(view.begin for view in views)
        end = min(self.confirmed, *(view.end for view in views))
        logs = [disk.log_bytes()[begin:end] for disk in self.disks.values()]
        assert logs[0] == logs[1], "the logs differ below the confirmed end"

    def teardown(self) -> None:
        try:
            self._settle()
        finally:
            for member in self.members.values():
                end_life(member.store)

    def _settle(self) -> None:
        """Let the group finish: then everything acknowledged is on both members."""
        if not self.leader:
            for name in "ab":
                self.elect(name)
                if self.leader:
                    break
        slave = self.members[self._other(self.leader)]
        for _ in range(1000):
            if slave.replica.view() == self._lead.replica.view() and slave.end == self.confirmed:
                break
            self._fetch(9000, True)
        views = [each.replica.view() for each in self.members.values()]
        assert views[0].end == views[1].end == self.confirmed
        self._confirm(self.confirmed, "a", "b")
        for member in self.members.values():
            if not member.store.has_topic("orders"):
                assert not self.seen
                continue
            self._look(member)
            ranges = member.store.offsets("orders").queues
            for queue, offset in self.seen:
                assert offset < ranges[queue].max, "an acknowledged message is gone"
        self._compare()


class SyncReplicas(Replicas):
    flush = FlushMode.SYNC


class AsyncReplicas(Replicas):
    flush = FlushMode.ASYNC


SyncReplicas.TestCase.settings = AsyncReplicas.TestCase.settings = settings(
    max_examples=examples(120), stateful_step_count=40
)


class TestSync(SyncReplicas.TestCase):
    """Power cuts and kills under sync flush."""


class TestAsync(AsyncReplicas.TestCase):
    """Kills under async flush: what is written survives them."""


pytestmark = pytest.mark.timeout(300)
