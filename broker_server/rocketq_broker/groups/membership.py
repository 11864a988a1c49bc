"""The members of this broker's consumer groups: heartbeats, watches, claims, and telling the others.

Everything here runs on the event loop's thread. `sessions` decides who is a member and `agreement` what
counts; the store decides about claims and commits. A session that ends has its queues released in the log
first; then the watches of the group are answered. So a member that is told of the change finds them free.

A group's version changes with each event that may move queues. Watches are answered at once if the group was
quiet. In a busy group they are answered at most once for each WAKE_MS_PER_MEMBER of its members, so that many
members that come at the same time cost one answer each for many changes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import structlog

from rocketq.clock import Clock
from rocketq.errors import Conflict, InvalidName, InvalidRequest, RocketqError
from rocketq.errors.group_errors import GroupDisabled, GroupNotFound, MemberUnknown
from rocketq.http_server.longpoll.long_poll import LongPoll
from rocketq.model import MessageModel, is_legal_client_id
from rocketq.protocol.documents.broker import GroupOffsets
from rocketq.protocol.documents.groups import (
    CLAIMED_QUEUES_MAX,
    SESSION_TIMEOUT_MS_MIN,
    ClaimAnswer,
    ClaimRequest,
    GroupMembers,
    Heartbeat,
    HeartbeatAnswer,
    Member,
    MemberCommit,
    MemberStatus,
    RefusalReason,
    ReleaseRequest,
    StartRule,
)
from rocketq.protocol.rules.reserved_names import check_name, check_user_group
from rocketq_broker.config import BrokerConfig
from rocketq_broker.groups.agreement import Agreement, agree, check_subscriptions
from rocketq_broker.groups.sessions import EXPIRY_CHECK_MS, Session, Sessions, session_timeout_ms
from rocketq_broker.metrics.group_metrics import Connected
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.group_operations import GroupOperations
from rocketq_broker.store.machines.claim_table import Place
from rocketq_broker.store.machines.group_table import GroupEntry
from rocketq_broker.store.state.group_decisions import check_start

WAKE_MS_PER_MEMBER: Final = 1

Receive = Callable[[], Any]

log = structlog.get_logger("rocketq.broker.groups")


class Membership:
    """Who is a member of which group on this broker."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, store: GroupOperations, completions: Completions
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._completions = completions
        self._loop = asyncio.get_running_loop()
        self._sessions: Sessions[Heartbeat] = Sessions(config.held_calls_max)
        self._watches: LongPoll[str] = LongPoll(clock, config.held_calls_max, "changes of a group")
        self._changes = _Changes(self._loop, clock, self._sessions.count, self._wake)
        self._agreements: dict[str, Agreement] = {}
        self._answers: dict[str, GroupMembers] = {}
        #: Queues that a member asked for in vain, by group.
        self._wanted: dict[str, set[Place]] = {}
        #: The sessions that have ended and whose queues are being released.
        self._ending: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._ends: set[asyncio.Task[None]] = set()
        #: How often queues were taken from their owners, in any group.
        self._queues_taken = 0
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_ms = 0
        self._stopped = False

    # --- life ---------------------------------------------------------------------------

    def recover(self) -> None:
        """Begin a session for each member that owns queues in the log: the broker starts to take calls."""
        now_ms = self._clock.monotonic_ms()
        for group, owners in self._store.owners().items():
            for client_id, topics in owners.items():
                if self._sessions.get(group, client_id) is None:
                    timeout_ms = self._config.session_timeout_ms
                    self._sessions.recover(group, client_id, tuple(sorted(topics)), timeout_ms, now_ms)
            self._changed(group)

    def stop(self) -> None:
        """Answer all watches as things stand, and end no session any more; safe to repeat."""
        self._stopped = True
        self._watches.release_all()
        self._changes.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- members ------------------------------------------------------------------------

    async def heartbeat(self, group: str, client_id: str, beat: Heartbeat, address: str) -> HeartbeatAnswer:
        """Take a member's heartbeat. Raises Invalid…, GroupNotFound, GroupDisabled, Conflict,
        LeasesOutstanding.
        """
        check_user_group(group)
        _check_client(client_id)
        check_subscriptions(beat.subscriptions)
        check_start(beat.start)
        timeout_ms = session_timeout_ms(
            beat.session_timeout_ms, SESSION_TIMEOUT_MS_MIN, self._config.session_timeout_ms
        )
        if group not in self._store:
            self.check_may_create(group)
            await self._completions.outcome(partial(self._store.create, group))
        if (ending := self._ending.get((group, client_id))) is not None:
            await asyncio.shield(ending)
        await self._check_same_process(group, client_id, beat)
        self._store.check_not_leased(group, {each.topic for each in beat.subscriptions})
        entry = self._entry(group)
        now_ms = self._clock.monotonic_ms()
        joined = self._sessions.beat(group, client_id, beat, address, timeout_ms, now_ms)
        if joined.is_change:
            self._changed(group)
        agreement = self._agreement(group, entry)
        return HeartbeatAnswer(
            self._config.name, group, joined.is_new, self._changes.version(group), timeout_ms,
            agreement.model, agreement.start, agreement.ordered, entry.settings.retries_max,
            agreement.differences, self._store.claims_of(group, client_id),
        )  # fmt: skip

    async def leave(self, group: str, client_id: str) -> None:
        """End a member's session; return when its queues are released."""
        check_name("group", group)
        if (ended := self._sessions.end(group, client_id)) is not None:
            await self._release_all(group, ended)

    async def end_group(self, group: str) -> None:
        """End the sessions of all members of a group."""
        for session in self._sessions.of(group):
            await self.leave(group, session.client_id)

    async def watch(
        self, group: str, client_id: str | None, known: str | None, wait_ms: int, receive: Receive
    ) -> GroupMembers:
        """Return the members; held while their version is `known`, and left out if it still is.

        Raises GroupDisabled, Disconnected; MemberUnknown for a member, GroupNotFound for another caller.
        """
        check_name("group", group)

        def is_new() -> bool:
            return self._changes.version(group) != known

        if client_id is None:
            self._entry(group)
            await self._watches.until(is_new, (group,), wait_ms, receive)
            return self._members(group, known)
        self._check_member(group, client_id)
        self._sessions.watch_begins(group, client_id, self._clock.monotonic_ms())
        is_broken = True
        try:
            await self._watches.until(is_new, (group,), wait_ms, receive)
            is_broken = False
        finally:
            self._sessions.watch_ends(group, client_id, is_broken, self._clock.monotonic_ms())
        self._check_member(group, client_id)
        return self._members(group, known)

    def statuses(self, group: str) -> tuple[MemberStatus, ...]:
        """Return the members of a group at this moment."""
        now_ms = self._clock.monotonic_ms()
        claims = self._store.claims(group)
        owned: dict[str, int] = {}
        for claim in claims.values():
            owned[claim.client_id] = owned.get(claim.client_id, 0) + 1
        return tuple(
            MemberStatus(_member(each), max(0, now_ms - each.heard_ms), owned.get(each.client_id, 0))
            for each in self._sessions.of(group)
        )

    def agreement(self, group: str) -> Agreement:
        """Return what counts in a group; raise GroupNotFound."""
        return self._agreement(group, self._store.entry(group))

    def client_ids(self, group: str) -> tuple[str, ...]:
        return tuple(each.client_id for each in self._sessions.of(group))

    @property
    def held_watches(self) -> int:
        return len(self._watches)

    def connected(self) -> Mapping[Connected, int]:
        """Return how many members there are of each group, language and version."""
        return Counter(
            Connected(group, each.beat.language, each.beat.version) if each.beat else Connected(group, "", "")
            for group in self._sessions
            for each in self._sessions.of(group)
        )

    def look_again(self, group: str) -> None:
        """Let the members look again at what counts and at what they own: it has changed."""
        self._changed(group)

    def queues_taken(self, group: str) -> None:
        """Let the members ask what they still own: an operator has taken queues from their owners."""
        self._queues_taken += 1
        self._changed(group)

    def check_may_create(self, group: str) -> None:
        """Raise GroupNotFound for an unknown group, where first use does not create one."""
        if group not in self._store and not self._config.auto_create_groups:
            raise GroupNotFound(group, self._config.name)

    # --- claims -------------------------------------------------------------------------

    async def claim(self, group: str, request: ClaimRequest) -> ClaimAnswer:
        """Give a member the queues that nobody owns. Raises GroupDisabled, MemberUnknown, Conflict."""
        check_name("group", group)
        _check_count(len(request.queues))
        self._check_member(group, request.client_id)
        agreement = self.agreement(group)
        if agreement.model is MessageModel.BROADCASTING:
            raise Conflict(
                f"group {group!r}", "it is broadcasting: each member reads every queue, and nobody owns one",
                "Claim nothing, or set the group's model to clustering.",
            )  # fmt: skip
        topics = {each.topic for each in request.queues}
        barred = {topic for topic in topics if not agreement.shares(topic, request.client_id)}
        write = partial(self._store.claim, group, request, barred)
        answer: ClaimAnswer = await self._completions.outcome(write)
        wanted = {(r.topic, r.queue) for r in answer.refused if r.reason is RefusalReason.OWNED}
        if wanted:
            self._wanted.setdefault(group, set()).update(wanted)
            # Released between the decision and now: nobody would tell the member.
            self._released(group, [place for place in wanted if place not in self._store.claims(group)])
        return answer

    async def release(self, group: str, request: ReleaseRequest) -> None:
        """Take queues from a member that releases them."""
        check_name("group", group)
        _check_count(len(request.queues))
        self._released(group, await self._completions.outcome(partial(self._store.release, group, request)))

    async def commit(self, group: str, request: MemberCommit) -> GroupOffsets:
        """Store a member's progress. Raises ClaimLost, TopicNotFound, QueueNotFound, OffsetOutOfRange."""
        check_name("group", group)
        _check_count(len(request.offsets))
        write = partial(self._store.commit_claimed, group, request)
        answer: GroupOffsets = await self._completions.outcome(write)
        if request.release:
            self._released(group, [(each.topic, each.queue) for each in request.offsets])
        return answer

    # --- what moves queues --------------------------------------------------------------

    def _released(self, group: str, places: Iterable[Place]) -> None:
        """Tell the members if one of them has asked for a queue that is free now."""
        wanted = self._wanted.get(group, set())
        found = wanted.intersection(places)
        if found:
            wanted -= found
            self._changed(group)

    async def _release_all(self, group: str, ended: Session[Heartbeat]) -> None:
        """Release the queues of a member whose session has ended, and tell the others."""
        place = group, ended.client_id
        self._ending[place] = self._loop.create_future()
        try:
            await self._completions.outcome(partial(self._store.end_session, *place))
        except RocketqError:
            # No queue may be left to an owner that is gone: the next look at the sessions ends it again.
            self._sessions.end_again(group, ended, self._clock.monotonic_ms())
            raise
        finally:
            self._ending.pop(place).set_result(None)
            self._changed(group)

    def _changed(self, group: str) -> None:
        self._agreements.pop(group, None)
        self._answers.pop(group, None)
        if not self._sessions.count(group):
            self._wanted.pop(group, None)
        self._changes.note(group)
        self._set_timer()

    def _wake(self, group: str) -> None:
        self._watches.changed((group,))

    def _expire(self) -> None:
        """End the sessions whose time is over; look again later while there are any."""
        self._timer = None
        for group, client_id in self._sessions.due(self._clock.monotonic_ms(), self._look_at_ms):
            log.info("session_ended", group=group, client_id=client_id)
            self._ends.add(task := self._loop.create_task(self.leave(group, client_id)))
            task.add_done_callback(self._ended)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and len(self._sessions) and not self._stopped:
            self._look_at_ms = self._clock.monotonic_ms() + EXPIRY_CHECK_MS
            self._timer = self._loop.call_later(EXPIRY_CHECK_MS / 1000, self._expire)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ends.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("release_failed", exc_info=error)

    # --- what is known ------------------------------------------------------------------

    async def _check_same_process(self, group: str, client_id: str, beat: Heartbeat) -> None:
        """Tell a member from another one that has its client id: only one of the two may act under it.

        The one that is there stays while it has a watch (Conflict for the other). Otherwise it is gone, and
        loses its queues: the new one must not commit under the epochs of the old one.
        """
        old = self._sessions.get(group, client_id)
        if old is None or old.beat is None or old.beat.started_at_us == beat.started_at_us:
            return
        if old.watches:
            raise Conflict(
                f"client id {client_id!r}", f"another live member of group {group!r} has it ({old.address})",
                "Give each member a client id of its own.",
            )  # fmt: skip
        await self.leave(group, client_id)

    def _check_member(self, group: str, client_id: str) -> None:
        """Raise GroupDisabled, or MemberUnknown if the broker has no heartbeat of the member."""
        self._store.check_enabled(group)
        session = self._sessions.get(group, client_id)
        if session is None or session.beat is None:
            raise MemberUnknown(group, client_id, self._config.name)

    def _entry(self, group: str) -> GroupEntry:
        """Return what is known of a group; raise GroupNotFound, GroupDisabled."""
        entry = self._store.entry(group)
        if not entry.settings.enabled:
            raise GroupDisabled(group, self._config.name)
        return entry

    def _agreement(self, group: str, entry: GroupEntry) -> Agreement:
        found = self._agreements.get(group)
        if found is None:
            found = agree(entry.settings, self._sessions.of(group), self._store.retry_topic(group))
            if self._sessions.count(group):
                self._agreements[group] = found
        return found

    def _members(self, group: str, known: str | None) -> GroupMembers:
        version = self._changes.version(group)
        if version == known:
            return GroupMembers(self._config.name, group, version, is_changed=False)
        found = self._answers.get(group)
        if found is None:
            members = tuple(_member(each) for each in self._sessions.of(group))
            topics = self.agreement(group).topics
            found = GroupMembers(
                self._config.name, group, version, members, topics, queues_taken=self._queues_taken
            )
            if members:
                self._answers[group] = found
        return found


class _Changes:
    """The versions of the groups, and when their watches are woken."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        members: Callable[[str], int],
        wake: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._members = members
        self._wake = wake
        #: Tells versions of this process from those of the one before.
        self._process = uuid.uuid4().hex[:8]
        self._number = 0
        self._versions: dict[str, int] = {}
        self._woken_ms: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def version(self, group: str) -> str:
        return f"{self._process}.{self._versions.get(group, 0)}"

    def note(self, group: str) -> None:
        """Give a group a new version, and wake its watches soon."""
        self._number += 1
        if self._members(group):
            self._versions[group] = self._number
        else:
            self._versions.pop(group, None)
        if group not in self._timers:
            pause_ms = WAKE_MS_PER_MEMBER * self._members(group)
            wait_ms = self._woken_ms.get(group, 0) + pause_ms - self._clock.monotonic_ms()
            self._timers[group] = self._loop.call_later(max(0, wait_ms) / 1000, self._due, group)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, group: str) -> None:
        del self._timers[group]
        if self._members(group):
            self._woken_ms[group] = self._clock.monotonic_ms()
        else:
            self._woken_ms.pop(group, None)
        self._wake(group)


def _member(session: Session[Heartbeat]) -> Member:
    beat = session.beat
    if beat is None:
        return Member(
            session.client_id, 0, False, session.timeout_ms, MessageModel.CLUSTERING, StartRule(), False,
            "", "", "", (),
        )  # fmt: skip
    return Member(
        session.client_id, beat.started_at_us, True, session.timeout_ms, beat.model, beat.start, beat.ordered,
        beat.language, beat.version, session.address, beat.subscriptions,
    )  # fmt: skip


def _check_client(client_id: str) -> None:
    if not is_legal_client_id(client_id):
        raise InvalidName("client", client_id)


def _check_count(queues: int) -> None:
    if queues > CLAIMED_QUEUES_MAX:
        raise InvalidRequest("queues", f"there are {queues}; the limit is {CLAIMED_QUEUES_MAX}")
