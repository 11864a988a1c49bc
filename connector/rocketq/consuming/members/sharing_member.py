"""A member of a consumer group that shares the queues with the others: it claims, commits and releases them.

In each round it decides which queues are its own (`rocketq.consuming.members.rebalance`). It claims what it
lacks, and is refused what another member still owns. A queue that goes to another member is *leaving*: it
hands out nothing more, waits at most `hand_over_ms` for the messages that are being handled, and is then
committed and released in one call. A queue that is *lost* (its claim or the session ended) is dropped as it
is; what was not committed comes again elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from rocketq.clock import Clock
from rocketq.config import ConsumerConfig
from rocketq.consuming.allocation.view import AllocationStrategy
from rocketq.consuming.fetching.fetch_threads import Fetching
from rocketq.consuming.fetching.start_offsets import group_offsets
from rocketq.consuming.fetching.subscriptions import MessageFilter
from rocketq.consuming.members.member import Member
from rocketq.consuming.members.member_sessions import Sessions
from rocketq.consuming.members.rebalance import Moves, again_in_ms, moves_to, progress_of, shares_of
from rocketq.errors import BrokerUnreachable, ClaimLost, Closed, MemberUnknown, OffsetOutOfRange, RocketqError
from rocketq.model import MessageQueue
from rocketq.net.route_cache import RouteCache
from rocketq.protocol.documents.groups import (
    ClaimedOffset,
    GroupMembers,
    HeartbeatAnswer,
    MemberCommit,
    QueueClaim,
    QueueOfTopic,
)
from rocketq.protocol.rules.reserved_names import retry_topic

log = logging.getLogger("rocketq.consuming.members.member")

#: Why a broker does not store the progress of a queue, while it stores that of others.
Refusal: TypeAlias = ClaimLost | OffsetOutOfRange

#: How often a queue that is to be released is looked at, while messages of it are being handled.
HAND_OVER_CHECK_MS: Final = 20


class SharingMember(Member):
    """Keeps the consumer on the queues that the member owns."""

    def __init__(
        self,
        routes: RouteCache,
        sessions: Sessions,
        fetching: Fetching,
        group: str,
        client_id: str,
        filters: Mapping[str, MessageFilter],
        strategy: AllocationStrategy,
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        super().__init__(routes, sessions, fetching, group, client_id, filters, config, clock)
        self._strategy = strategy
        self._retry_topic = retry_topic(group)
        self._refusals = 0
        self._committing = threading.Lock()
        #: What the brokers have stored of the queues that the member owns.
        self._committed: dict[MessageQueue, int | None] = {}
        #: Queues to be released, and when at the latest.
        self._leaving: dict[MessageQueue, int] = {}
        #: Queues that were released here and not yet at their brokers.
        #: With whether the offset may go back, after a seek.
        self._to_release: dict[MessageQueue, tuple[ClaimedOffset, bool]] = {}
        self._release_due_ms = 0
        #: What the last round decided from, if nothing was left to do after it.
        self._settled: object = None

    # --- rounds ------------------------------------------------------------------

    def _balance(self, queues: Mapping[str, list[MessageQueue]]) -> None:
        known = self._sessions.known()
        retried = self._retry_queues(known)
        queues = {**queues, self._retry_topic: retried} if retried else queues
        seen = (
            {topic: tuple(of_topic) for topic, of_topic in queues.items()},
            {broker: members.version for broker, members in known.items()},
            frozenset(self._owned()),
        )
        if seen == self._settled:
            return
        self._settled = None
        shares = shares_of(self._client_id, queues, known, self._owners(), self._strategy)
        unknown = shares.unknown | (self._filters.keys() - queues.keys())
        moves = moves_to(shares.with_unknown(unknown), self._owned(), self._leaving)
        self._leave(moves)
        claimed = [queue for queue in moves.claim if self._sessions.has_joined(queue.broker)]
        refused = self._claim(claimed)
        self._refusals = self._refusals + 1 if refused or len(claimed) < len(moves.claim) else 0
        if self._refusals:
            self._round_due_ms = self._clock.monotonic_ms() + again_in_ms(self._refusals)
        elif not (unknown or moves.leave or moves.claim):
            self._settled = seen

    def _retry_queues(self, known: Mapping[str, GroupMembers]) -> list[MessageQueue]:
        """Return the queues of the group's retry topic: one on each broker that has the topic.

        What a broker has that does not answer now is not released for that.
        """
        found = {
            broker
            for broker, members in known.items()
            if any(each.topic == self._retry_topic for each in members.topics)
        }
        found |= {
            queue.broker
            for queue in self._owned()
            if queue.topic == self._retry_topic and queue.broker not in known
        }
        return [MessageQueue(self._retry_topic, broker, 0) for broker in sorted(found)]

    def _owners(self) -> dict[MessageQueue, str]:
        """Return who owns each queue, as the brokers say, and of its own as the member knows."""
        found: dict[MessageQueue, str] = {}
        for session in self._sessions:
            if session.is_joined:
                try:
                    described = self._sessions.api(session.broker).group(self._group)
                except RocketqError as error:
                    self._fetching.log_once(("owners", session.broker), error)
                    continue
                for one in described.queues:
                    if one.owner is not None and one.owner != self._client_id:
                        found[MessageQueue(one.topic, session.broker, one.queue)] = one.owner
        return found | dict.fromkeys(self._owned(), self._client_id)

    def _leave(self, moves: Moves) -> None:
        until_ms = self._clock.monotonic_ms() + self._config.hand_over_ms
        with self._fetching.changed:
            for queue in moves.leave:
                state = self._fetching.prefetch.state(queue)
                if state is not None:
                    state.leave()
                    self._leaving[queue] = until_ms
            if moves.leave:
                self._fetching.changed.notify_all()

    def _claim(self, queues: Iterable[MessageQueue]) -> int:
        """Claim queues and begin with those that are granted; return how many were not."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            if queue not in self._to_release:
                by_broker[queue.broker].append(queue)
        missing = 0
        for broker, wanted in by_broker.items():
            missing += len(wanted)
            try:
                asked = [QueueOfTopic(queue.topic, queue.queue) for queue in wanted]
                answer = self._sessions.api(broker).claim_queues(self._group, self._client_id, asked)
                self._begin(broker, answer.granted)
                missing -= len(answer.granted)
                self._fetching.is_well(("claims", broker))
            except Closed:
                raise
            except MemberUnknown:
                self._sessions.forget(broker)
            except RocketqError as error:
                self._routes.invalidate(wanted[0].topic)
                self._fetching.log_once(("claims", broker), error)
        return missing

    def _begin(self, broker: str, claims: Iterable[QueueClaim]) -> None:
        by_topic: dict[str, list[QueueClaim]] = defaultdict(list)
        for claim in claims:
            by_topic[claim.topic].append(claim)
        start = self._answers[broker].start
        for topic, of_topic in by_topic.items():
            stored = {claim.queue: claim.offset for claim in of_topic}
            epochs = {claim.queue: claim.epoch for claim in of_topic}
            api = self._sessions.api(broker)
            found = group_offsets(api, topic, stored, start, self._initial, epochs)
            self._committed |= {MessageQueue(topic, broker, c.queue): c.offset for c in of_topic}
            self._fetching.begin(found)
            if any(claim.offset is None for claim in of_topic):
                # Where the group begins is stored at once: another owner must not begin elsewhere.
                self._commit_due_ms = 0

    # --- the loop ----------------------------------------------------------------

    def _due_ms(self) -> int | None:
        times = [self._release_due_ms] if self._to_release else []
        if self._leaving:
            times.append(self._clock.monotonic_ms() + HAND_OVER_CHECK_MS)
        return min(times, default=None)

    def _upkeep(self) -> None:
        self._drop_ended_sessions()
        self._hand_over()

    def _finish(self) -> None:
        for queue in self._owned():
            self._forget(queue, release=True)
        self._release()

    # --- releasing --------------------------------------------------------------

    def _hand_over(self) -> None:
        """Give back the queues that nobody works on any more, and those whose time is over."""
        now_ms = self._clock.monotonic_ms()
        for queue, until_ms in list(self._leaving.items()):
            with self._fetching.changed:
                state = self._fetching.prefetch.state(queue)
                is_over = state is None or state.is_idle or now_ms >= until_ms
                if state is not None and not state.is_idle and is_over:
                    log.warning(
                        "%s goes to another member while messages are being handled; those from offset %d on "
                        "are delivered again", queue, state.committable(),
                    )  # fmt: skip
            if is_over:
                self._forget(queue, release=True)
        if self._to_release and now_ms >= self._release_due_ms:
            self._release()

    def _forget(self, queue: MessageQueue, *, release: bool) -> None:
        """Stop consuming a queue; with `release` its progress is to be stored and the queue released."""
        with self._fetching.changed:
            self._leaving.pop(queue, None)
            self._committed.pop(queue, None)
            state = self._fetching.prefetch.state(queue)
            if state is None:
                return
            state.recall()
            self._fetching.prefetch.remove(queue)
            if release and state.epoch is not None:
                offset = ClaimedOffset(queue.topic, queue.queue, state.epoch, state.committable())
                self._to_release[queue] = (offset, state.sought)
                self._release_due_ms = 0
            self._fetching.changed.notify_all()

    def _release(self) -> None:
        """Commit and release at their brokers what was released here; what fails is kept for later."""
        together: dict[tuple[str, bool], list[MessageQueue]] = defaultdict(list)
        for queue, (_, reset) in self._to_release.items():
            together[queue.broker, reset].append(queue)
        for (broker, reset), queues in together.items():
            offsets = tuple(self._to_release[queue][0] for queue in queues)
            try:
                self._commit_claimed(broker, MemberCommit(self._client_id, offsets, reset, release=True))
            except RocketqError as error:
                self._fetching.log_once(("release", broker), error)
                self._release_due_ms = self._clock.monotonic_ms() + self._config.retry_ms
                continue
            for queue in queues:
                del self._to_release[queue]

    # --- progress ----------------------------------------------------------------

    def commit(self) -> None:
        """Store the progress of all queues now; raise the error of the first broker that did not take it."""
        with self._committing:
            failed: RocketqError | None = None
            for broker in {queue.broker for queue in self._owned()}:
                try:
                    refused = self._commit_at(broker)
                except (BrokerUnreachable, MemberUnknown) as error:
                    failed = failed or error
                else:
                    failed = failed or next(iter(refused), None)
        if failed is not None:
            raise failed

    def _commit_at(self, broker: str) -> list[Refusal]:
        """Store the progress of one broker's queues; return why some of it was not stored.

        What was sought is stored apart: only that may go back.
        """
        refused: list[Refusal] = []
        for reset in (False, True):
            progress: dict[MessageQueue, ClaimedOffset] = {}
            generations: dict[MessageQueue, int] = {}
            with self._fetching.changed:
                for state in self._fetching.prefetch.states():
                    if state.queue.broker == broker and state.sought is reset and state.epoch is not None:
                        committed = self._committed.get(state.queue)
                        offset = progress_of(state.queue, state.epoch, state.committable(), committed)
                        if offset is not None:
                            progress[state.queue] = offset
                            generations[state.queue] = state.generation
            if not progress:
                continue
            commit = MemberCommit(self._client_id, tuple(progress.values()), reset)
            refused += self._commit_claimed(broker, commit)
            beyond = {each.queue for each in refused if isinstance(each, OffsetOutOfRange)}
            with self._fetching.changed:
                for queue in progress.keys() - beyond:
                    current = self._fetching.prefetch.state(queue)
                    if current is not None and current.generation == generations[queue]:
                        self._committed[queue], current.sought = progress[queue].offset, False
        return refused

    def _commit_claimed(self, broker: str, commit: MemberCommit) -> list[Refusal]:
        """Make a commit, without the queues of which the broker does not take it; return why not."""
        found: list[Refusal] = []
        while commit.offsets:
            try:
                self._sessions.api(broker).commit_claimed(self._group, commit)
                self._fetching.is_well(("release", broker))
                return found
            except OffsetOutOfRange as error:
                kept = tuple(
                    o for o in commit.offsets if MessageQueue(o.topic, broker, o.queue) != error.queue
                )
                if len(kept) == len(commit.offsets):
                    raise
                found.append(error)
                self._look_beyond_end(error, release=commit.release)
                commit = replace(commit, offsets=kept)
            except ClaimLost as error:
                found.append(error)
                lost = {(one["topic"], one["queue"]) for one in error.lost}
                for offset in commit.offsets:
                    if (offset.topic, offset.queue) in lost:
                        queue = MessageQueue(offset.topic, broker, offset.queue)
                        self._lose(queue, "its claim was taken over", offset.epoch)
                kept = tuple(o for o in commit.offsets if (o.topic, o.queue) not in lost)
                if len(kept) == len(commit.offsets):
                    raise
                commit = replace(commit, offsets=kept)
            except MemberUnknown:
                # The answer to the next heartbeat says what the member still owns.
                self._sessions.forget(broker)
                raise
            except BrokerUnreachable:
                self._routes.invalidate(commit.offsets[0].topic)
                raise
        return found

    def _look_beyond_end(self, error: OffsetOutOfRange, *, release: bool) -> None:
        """Deal with a queue whose progress lies beyond its end: after a loss at its broker, or a wrong seek.

        The next pull of it finds that out, and does what `offset_reset` says. If the queue is released, its
        next owner begins at the offset that is stored.
        """
        queue = error.queue
        if release:
            place = QueueOfTopic(queue.topic, queue.queue)
            log.warning("%s is released, and the progress in it is not stored: %s", queue, error)
            self._sessions.api(queue.broker).release_queues(self._group, self._client_id, [place])
            return
        with self._fetching.changed:
            state = self._fetching.prefetch.state(queue)
            if state is not None:
                state.probe = True
                self._fetching.changed.notify_all()

    # --- losses ------------------------------------------------------------------

    def _lose(self, queue: MessageQueue, why: str, epoch: int | None) -> None:
        """Drop a queue as it is, unless it was claimed again meanwhile, under another epoch."""
        with self._fetching.changed:
            state = self._fetching.prefetch.state(queue)
            if state is not None and state.epoch == epoch:
                log.warning("%s is lost: %s; what was not committed is delivered again", queue, why)
                self._forget(queue, release=False)
        self.wake()

    def _drop_ended_sessions(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for session in self._sessions:
            why = f"the broker answered nothing for {session.timeout_ms} ms"
            is_over = session.is_joined and now_ms >= session.ends_ms
            if is_over:
                self._sessions.forget(session.broker)
            elif session.refusal is not None:
                is_over, why = True, session.refusal.message
            for queue, epoch in self._owned_at(session.broker).items() if is_over else ():
                self._lose(queue, why, epoch)

    def _compare(self, answer: HeartbeatAnswer) -> None:
        epochs = {(claim.topic, claim.queue): claim.epoch for claim in answer.claims}
        self._drop_unclaimed(answer.broker, epochs)
        known = {*self._owned(), *self._to_release}
        stray = [
            QueueOfTopic(topic, number)
            for topic, number in epochs
            if MessageQueue(topic, answer.broker, number) not in known
        ]
        if stray:
            # Granted in an answer that was lost. If it is still wanted, the next round claims it.
            self._sessions.api(answer.broker).release_queues(self._group, self._client_id, stray)

    def _drop_unclaimed(self, broker: str, epochs: Mapping[tuple[str, int], int]) -> None:
        for queue, epoch in self._owned_at(broker).items():
            if epochs.get((queue.topic, queue.queue)) != epoch:
                self._lose(queue, "the broker has given it to another member or released it", epoch)

    def _owned_at(self, broker: str) -> dict[MessageQueue, int | None]:
        """Return the member's queues of a broker with the epochs of their claims."""
        with self._fetching.changed:
            states = self._fetching.prefetch.states()
            return {state.queue: state.epoch for state in states if state.queue.broker == broker}
