"""Queues of a group have one owner at most, in any order of calls, restarts, kills and power cuts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from rocketq.errors import (
    ClaimLost,
    GroupNotFound,
    MembersActive,
    OffsetOutOfRange,
    QueuesOwned,
    ReservedName,
)
from rocketq.model import FlushMode, GroupKind, MessageModel
from rocketq.protocol.documents.broker import AlterTopicRequest, CommitOffsetsRequest, GroupOffset
from rocketq.protocol.documents.groups import (
    ClaimAnswer,
    ClaimedOffset,
    ClaimRequest,
    CloneRequest,
    GroupSettings,
    MemberCommit,
    QueueOfTopic,
    RefusalReason,
    ReleaseRequest,
    SetGroupRequest,
)
from rocketq_broker.store.state.group_decisions import Move
from tests.support.disk import Disk
from tests.support.lives import Lives
from tests.support.store_driver import Driver, answer, config, opened
from tests.support.workload import end_life

GROUPS = st.sampled_from(["g", "h"])
MEMBERS = st.sampled_from(["a", "b", "c"])
TOPICS = st.sampled_from(["orders", "refunds"])
SOME_QUEUES = st.sets(st.integers(0, 3), min_size=1)
#: (group, topic, queue)
Place = tuple[str, str, int]


def claim(driver: Driver, group: str, member: str, topic: str, *queues: int, barred: str = "") -> ClaimAnswer:
    request = ClaimRequest(member, tuple(QueueOfTopic(topic, queue) for queue in queues))
    made: ClaimAnswer = answer(partial(driver.store.consumer_groups.claim, group, request, {barred}))
    return made


def release(driver: Driver, group: str, member: str, topic: str, *queues: int) -> set[tuple[str, int]]:
    request = ReleaseRequest(member, tuple(QueueOfTopic(topic, queue) for queue in queues))
    return set(answer(partial(driver.store.consumer_groups.release, group, request)))


def commit(
    driver: Driver, group: str, member: str, *places: tuple[str, int, int, int], release: bool = False
) -> None:
    """Commit (topic, queue, epoch, offset)."""
    request = MemberCommit(member, tuple(ClaimedOffset(*each) for each in places), release=release)
    answer(partial(driver.store.consumer_groups.commit_claimed, group, request))


class Claims(Lives):
    """`self.owners` is who must own what, with the epoch; `self.progress` the stored offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[Place, tuple[str, int]] = {}
        self.progress: dict[Place, int] = {}
        self.groups: set[str] = set()
        self.highest = 0

    @initialize(flush=st.sampled_from(list(FlushMode)), seed=st.integers(0, 1 << 32))
    def begin(self, flush: FlushMode, seed: int) -> None:
        self.disk = Disk(seed)
        self.flush = flush
        self.settings = config(flush=flush, segment_bytes=10_000)
        self._start()
        for topic in ("orders", "refunds"):
            self._create(topic)

    def _create(self, topic: str) -> None:
        self.driver.create(topic, 3)
        for queue in range(3):
            self.driver.send(topic, queue, [b"message"] * 5)

    @rule(group=GROUPS)
    def create_group(self, group: str) -> None:
        answer(partial(self.driver.store.consumer_groups.create, group))
        self.groups.add(group)

    @rule(group=GROUPS, member=MEMBERS, topic=TOPICS, queues=SOME_QUEUES, barred=st.booleans())
    def claim(self, group: str, member: str, topic: str, queues: set[int], barred: bool) -> None:
        if group not in self.groups:
            with pytest.raises(GroupNotFound):
                claim(self.driver, group, member, topic, *queues)
            return
        made = claim(self.driver, group, member, topic, *queues, barred=topic if barred else "")
        assert {each.queue for each in (*made.granted, *made.refused)} == queues
        for each in made.granted:
            place = (group, topic, each.queue)
            if place not in self.owners:
                assert not barred
                assert each.epoch > self.highest, "an epoch rises with each owner"
                self.owners[place] = (member, each.epoch)
            assert self.owners[place] == (member, each.epoch)
            assert each.offset == self.progress.get(place)
        for refused in made.refused:
            owner = self.owners.get((group, topic, refused.queue))
            if owner is not None:
                assert (refused.reason, refused.owner) == (RefusalReason.OWNED, owner[0])
                assert owner[0] != member
            else:
                expected = RefusalReason.NOT_ELIGIBLE if barred else RefusalReason.NO_SUCH_QUEUE
                assert refused.reason is expected
        self.highest = max([self.highest, *(each.epoch for each in made.granted)])

    @rule(group=GROUPS, member=MEMBERS, topic=TOPICS, queues=SOME_QUEUES)
    def release(self, group: str, member: str, topic: str, queues: set[int]) -> None:
        mine = {
            place for queue in queues if self.owners.get(place := (group, topic, queue), ("", 0))[0] == member
        }
        assert release(self.driver, group, member, topic, *queues) == {place[1:] for place in mine}
        for place in mine:
            del self.owners[place]

    @rule(group=GROUPS, member=MEMBERS)
    def end_session(self, group: str, member: str) -> None:
        answer(partial(self.driver.store.consumer_groups.end_session, group, member))
        self.owners = {
            place: owner for place, owner in self.owners.items() if (place[0], owner[0]) != (group, member)
        }

    @rule(
        group=GROUPS, member=MEMBERS, topic=TOPICS, queue=st.integers(0, 2), offset=st.integers(0, 5),
        back=st.integers(0, 3), gives_back=st.booleans(),
    )  # fmt: skip
    def commit_as_a_member(
        self, group: str, member: str, topic: str, queue: int, offset: int, back: int, gives_back: bool
    ) -> None:
        """`back` is how much older the named epoch is than the newest."""
        place = (group, topic, queue)
        epoch = self.owners.get(place, ("", self.highest))[1] - back
        attempt = (topic, queue, epoch, offset)
        if self.owners.get(place) != (member, epoch):
            with pytest.raises(ClaimLost):
                commit(self.driver, group, member, attempt, release=gives_back)
            return
        commit(self.driver, group, member, attempt, release=gives_back)
        self.progress[place] = max(offset, self.progress.get(place, 0))
        if gives_back:
            del self.owners[place]

    @rule(group=GROUPS, topic=TOPICS, queue=st.integers(0, 2), offset=st.integers(0, 5), force=st.booleans())
    def commit_from_outside(self, group: str, topic: str, queue: int, offset: int, force: bool) -> None:
        place = (group, topic, queue)
        request = CommitOffsetsRequest((GroupOffset(topic, queue, offset),), reset=True, force=force)
        call = partial(self.driver.store.consumer_groups.commit_offsets, group, request)
        if place in self.owners and not force:
            with pytest.raises(QueuesOwned):
                answer(call)
            return
        answer(call)
        self.groups.add(group)
        self.owners.pop(place, None)
        self.progress[place] = offset

    @rule(group=GROUPS, force=st.booleans())
    def delete_group(self, group: str, force: bool) -> None:
        if group not in self.groups:
            return
        answer(partial(self.driver.store.consumer_groups.delete, group, (), force))
        self.groups.discard(group)
        self.owners = {place: owner for place, owner in self.owners.items() if place[0] != group}
        self.progress = {place: offset for place, offset in self.progress.items() if place[0] != group}

    @rule(topic=TOPICS)
    def make_a_topic_anew(self, topic: str) -> None:
        self.driver.delete(topic)
        self.owners = {place: owner for place, owner in self.owners.items() if place[1] != topic}
        self.progress = {place: offset for place, offset in self.progress.items() if place[1] != topic}
        self._create(topic)

    @rule()
    def power_cut(self) -> None:
        if self.flush is FlushMode.ASYNC:
            self.driver.store.flush()
        self.disk.cut_power()
        end_life(self.driver.store)
        self.disk.restart()
        self._start()

    @invariant()
    def everything_is_as_it_must_be(self) -> None:
        if not hasattr(self, "driver"):
            return
        store = self.driver.store
        assert set(store.groups()) == self.groups
        found = {
            (group, *place): tuple(owner)
            for group in ("g", "h")
            for place, owner in store.consumer_groups.claims(group).items()
        }
        assert found == self.owners
        told = {
            (group, *place): offset
            for group in store.groups()
            for place, offset in self.driver.progress(group).items()
        }
        assert told == self.progress

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.store.close()


TestClaims = Claims.TestCase


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    with opened(config(tmp_path)) as made:
        made.create("orders", 4)
        made.send("orders", 0, [b"message"] * 9)
        answer(partial(made.store.consumer_groups.create, "billing"))
        yield made  # type: ignore[misc]


def test_a_commit_of_a_lost_queue_stores_nothing_and_names_the_owner(driver: Driver) -> None:
    first = claim(driver, "billing", "a", "orders", 0, 1).granted[0].epoch
    release(driver, "billing", "a", "orders", 1)
    second = claim(driver, "billing", "b", "orders", 1).granted[0].epoch
    with pytest.raises(ClaimLost) as refused:
        commit(driver, "billing", "a", ("orders", 0, first, 4), ("orders", 1, first, 0))
    assert refused.value.lost == [
        {"topic": "orders", "queue": 1, "epoch": first, "owner": "b", "owner_epoch": second}
    ]
    assert driver.progress("billing") == {}
    commit(driver, "billing", "a", ("orders", 0, first, 4))
    assert driver.progress("billing") == {("orders", 0): 4}


def test_an_owner_that_comes_back_names_its_old_epoch_in_vain(driver: Driver) -> None:
    old = claim(driver, "billing", "a", "orders", 0).granted[0].epoch
    answer(partial(driver.store.consumer_groups.end_session, "billing", "a"))
    assert claim(driver, "billing", "a", "orders", 0).granted[0].epoch > old
    with pytest.raises(ClaimLost):
        commit(driver, "billing", "a", ("orders", 0, old, 4))


def test_a_commit_that_releases_lets_the_next_owner_begin_there(driver: Driver) -> None:
    [mine] = claim(driver, "billing", "a", "orders", 0).granted
    commit(driver, "billing", "a", ("orders", 0, mine.epoch, 7), release=True)
    [next_] = claim(driver, "billing", "b", "orders", 0).granted
    assert next_.offset == 7


def test_a_member_cannot_commit_beyond_the_end(driver: Driver) -> None:
    [mine] = claim(driver, "billing", "a", "orders", 0).granted
    with pytest.raises(OffsetOutOfRange):
        commit(driver, "billing", "a", ("orders", 0, mine.epoch, 10), release=True)
    assert claim(driver, "billing", "b", "orders", 0).refused[0].owner == "a"


def test_a_queue_that_nobody_may_read_is_not_given(driver: Driver) -> None:
    answer(partial(driver.store.alter_topic, "orders", AlterTopicRequest(read_queues=2)))
    made = claim(driver, "billing", "a", "orders", 1, 2)
    assert [each.queue for each in made.granted] == [1]
    assert [(each.queue, each.reason) for each in made.refused] == [(2, RefusalReason.NO_SUCH_QUEUE)]


def test_a_forced_move_takes_the_queue_also_where_the_offset_stays(driver: Driver) -> None:
    [mine] = claim(driver, "billing", "a", "orders", 0).granted
    commit(driver, "billing", "a", ("orders", 0, mine.epoch, 4))
    to = (GroupOffset("orders", 0, 4),)
    reset = driver.store.consumer_groups.reset
    with pytest.raises(MembersActive):
        answer(partial(reset, Move("billing", to, (), dry_run=False, force=False), False))
    moved = answer(partial(reset, Move("billing", to, (), dry_run=False, force=True), False))
    assert [(each.before, each.after) for each in moved.moves] == [(4, 4)]
    with pytest.raises(ClaimLost):
        commit(driver, "billing", "a", ("orders", 0, mine.epoch, 5))


def test_a_dry_run_moves_nothing_and_says_what_would_move(driver: Driver) -> None:
    driver.commit("billing", "orders", 0, 4)
    to = (GroupOffset("orders", 0, 9), GroupOffset("orders", 1, 0))
    move = Move("billing", to, ("a member",), dry_run=True, force=False)
    told = answer(partial(driver.store.consumer_groups.reset, move, False))
    assert [(each.queue, each.before, each.after) for each in told.moves] == [(0, 4, 9), (1, None, 0)]
    assert driver.progress("billing") == {("orders", 0): 4}


def test_a_clone_takes_over_the_progress_of_the_source(driver: Driver) -> None:
    driver.commit("billing", "orders", 0, 4)
    clone = driver.store.consumer_groups.clone
    move = Move("audit", (), (), dry_run=False, force=False)
    answer(partial(clone, move, CloneRequest("billing")))
    assert driver.progress("audit") == driver.progress("billing")
    with pytest.raises(GroupNotFound):
        answer(partial(clone, move, CloneRequest("unknown")))
    with pytest.raises(ReservedName):
        answer(partial(clone, Move("%RETRY%x", (), (), False, False), CloneRequest("billing")))


def test_settings_and_the_kind_of_a_group_outlive_a_restart(tmp_path: Path) -> None:
    wanted = SetGroupRequest(retries_max=3, model=MessageModel.BROADCASTING)
    for flushed in (False, True):
        with opened(config(tmp_path)) as driver:
            groups = driver.store.consumer_groups
            if not flushed:
                driver.create("orders", 1)
                answer(partial(groups.set, "billing", wanted))
                request = CommitOffsetsRequest((GroupOffset("orders", 0, 0),), kind=GroupKind.SPARK)
                answer(partial(groups.commit_offsets, "query", request))
            entry = groups.entry("billing")
            assert entry.settings == GroupSettings(retries_max=3, model=MessageModel.BROADCASTING)
            assert (entry.kind, groups.entry("query").kind) == (GroupKind.CONSUMERS, GroupKind.SPARK)
