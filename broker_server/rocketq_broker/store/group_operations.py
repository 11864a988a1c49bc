"""The store's door for consumer groups: calls that are decided and ordered by the log writer, and reads.

As everywhere in the store, `done` is called on the writer's thread with the outcome or the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from rocketq.errors.group_errors import GroupDisabled, GroupNotFound
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset, GroupOffsets
from rocketq.protocol.documents.groups import (
    ClaimAnswer,
    ClaimRequest,
    CloneRequest,
    MemberCommit,
    OffsetMove,
    OffsetMoves,
    QueueClaim,
    ReleaseRequest,
    SetGroupRequest,
)
from rocketq.protocol.rules.reserved_names import retry_topic
from rocketq_broker.store.commit.ends import LogEnds
from rocketq_broker.store.commit.waiting_operations import ChangeState, Operation
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.machines.claim_table import ClaimMap, Place
from rocketq_broker.store.machines.group_table import GroupEntry, QueuesReleased
from rocketq_broker.store.state import group_decisions as decisions
from rocketq_broker.store.state.group_decisions import Move
from rocketq_broker.store.state.state import Change, State

Done = Callable[[Any], None]


class GroupOperations:
    """Everything that can be asked of the consumer groups of one store; `StoreReads` has their offsets."""

    def __init__(
        self, broker: str, ends: LogEnds, queues: Queues, submit: Callable[[Operation], None]
    ) -> None:
        self._broker = broker
        self._ends = ends
        self._queues = queues
        self._submit = submit

    # --- reads --------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        return self._ends.state

    def __contains__(self, group: str) -> bool:
        return group in self._state.groups

    def entry(self, group: str) -> GroupEntry:
        """Return the settings and the kind of a group; raise GroupNotFound."""
        groups = self._state.groups
        if group not in groups:
            raise GroupNotFound(group, self._broker)
        return groups.entry(group)

    def claims(self, group: str) -> ClaimMap:
        """Return who owns which queue in a group."""
        return self._state.claims.claims(group)

    def claims_of(self, group: str, client_id: str) -> tuple[QueueClaim, ...]:
        """Return the queues of one member, with the stored offsets of the group."""
        state = self._state
        offsets = state.groups.offsets(group)
        owned = sorted(state.claims.owned_by(group, client_id))
        return tuple(QueueClaim(*place, *claim, offsets.get(place)) for place, claim in owned)

    def owners(self) -> dict[str, dict[str, set[str]]]:
        """Return, by group and owner, the topics in which the owner has queues."""
        found: dict[str, dict[str, set[str]]] = {}
        for group, claims in self._state.claims.groups.items():
            for (topic, _), claim in claims.items():
                found.setdefault(group, {}).setdefault(claim.client_id, set()).add(topic)
        return found

    def check_enabled(self, group: str) -> None:
        """Raise GroupDisabled for a group that an operator has disabled; an unknown one is not."""
        if not self._state.groups.entry(group).settings.enabled:
            raise GroupDisabled(group, self._broker)

    def check_owner(self, group: str, client_id: str, topic: str, queue: int, epoch: int) -> None:
        """Raise ClaimLost unless a member owns a queue under this epoch."""
        decisions.check_owner(self._state, group, client_id, [(topic, queue, epoch)], self._broker)

    def retry_topic(self, group: str) -> str | None:
        """Return the group's retry topic, None while it has none."""
        name = retry_topic(group)
        return name if name in self._state.topics else None

    def owner_check(
        self, group: str, client_id: str, queues: Sequence[tuple[str, int, int]]
    ) -> Callable[[State], None]:
        """Return what raises ClaimLost unless a member owns each (topic, queue) under the epoch behind it."""
        return lambda state: decisions.check_owner(state, group, client_id, queues, self._broker)

    def check_not_leased(self, group: str, topics: Collection[str]) -> None:
        """Raise LeasesOutstanding if messages of one of these topics are leased one by one."""
        leased = [place for place in self._state.leases.of_group(group) if place[0] in topics]
        decisions.check_not_leased(self._state, group, leased, "owned by a member", self._broker)

    # --- the group itself ---------------------------------------------------------------

    def create(self, group: str, done: Done) -> None:
        """Have a group, with the default settings if it is new; `done` has its GroupEntry or the error."""
        self._change(
            lambda state: decisions.create_group(state, group), lambda state: state.groups.entry(group), done
        )

    def set(self, group: str, request: SetGroupRequest, done: Done) -> None:
        """Create a group or change its settings; `done` has its GroupEntry or the error."""
        self._change(
            lambda state: decisions.set_group(state, group, request),
            lambda state: state.groups.entry(group),
            done,
        )

    def delete(self, group: str, members: Sequence[str], force: bool, done: Done) -> None:
        """Forget a group; `done` has None, GroupNotFound, or MembersActive if there are `members`."""
        self._change(
            lambda state: decisions.delete_group(state, group, members, force, self._broker),
            lambda state: None,
            done,
        )

    # --- claims -------------------------------------------------------------------------

    def claim(self, group: str, request: ClaimRequest, barred: Collection[str], done: Done) -> None:
        """Give a member the queues that nobody owns, none of `barred` topics; `done` has the ClaimAnswer."""
        asked = [(each.topic, each.queue) for each in request.queues]

        def answer(state: State) -> ClaimAnswer:
            outcome = decisions.claimed(state, group, request.client_id, asked, barred)
            return ClaimAnswer(self._broker, group, *outcome)

        self._change(
            lambda state: decisions.claim(state, group, request.client_id, asked, barred, self._broker),
            answer,
            done,
        )

    def release(self, group: str, request: ReleaseRequest, done: Done) -> None:
        """Take queues from a member that releases them; `done` has the released places."""
        asked = [(each.topic, each.queue) for each in request.queues]
        self._release(lambda state: decisions.release(state, group, request.client_id, asked), done)

    def end_session(self, group: str, client_id: str, done: Done) -> None:
        """Take all queues from a member that is gone; `done` has the released places."""
        self._release(lambda state: decisions.end_session(state, group, client_id), done)

    def _release(self, decide: Callable[[State], QueuesReleased | None], done: Done) -> None:
        released: tuple[Place, ...] = ()

        def decided(state: State) -> Change | None:
            nonlocal released
            change = decide(state)
            released = () if change is None else change.queues
            return change

        self._change(decided, lambda state: released, done)

    # --- progress -----------------------------------------------------------------------

    def commit_claimed(self, group: str, commit: MemberCommit, done: Done) -> None:
        """Store a member's progress; `done` has GroupOffsets, ClaimLost or another error."""
        places = [(each.topic, each.queue) for each in commit.offsets]
        self._change(
            lambda state: decisions.commit_claimed(state, self._queues, group, commit, self._broker),
            lambda state: decisions.committed(state, group, places, self._broker),
            done,
        )

    def commit_offsets(self, group: str, request: CommitOffsetsRequest, done: Done) -> None:
        """Store a group's progress; it only advances unless `reset`. `done` has GroupOffsets or the error."""

        def answer(state: State) -> GroupOffsets:
            places = [(each.topic, each.queue) for each in request.offsets]
            return decisions.committed(state, group, places, self._broker)

        self._change(
            lambda state: decisions.commit_offsets(state, self._queues, group, request, self._broker),
            answer,
            done,
        )

    def reset(self, move: Move, create: bool, done: Done) -> None:
        """Put a group's progress elsewhere; `done` has OffsetMoves or the error."""

        def offsets(state: State) -> tuple[GroupOffset, ...]:
            if move.group not in state.groups and not create:
                raise GroupNotFound(move.group, self._broker)
            return move.offsets

        self._move(move, offsets, done)

    def clone(self, move: Move, request: CloneRequest, done: Done) -> None:
        """Give a group the progress of another; `done` has OffsetMoves or the error."""
        self._move(
            move, lambda state: decisions.offsets_to_clone(state, move.group, request, self._broker), done
        )

    def _move(self, move: Move, offsets: Callable[[State], tuple[GroupOffset, ...]], done: Done) -> None:
        made: tuple[OffsetMove, ...] = ()

        def decide(state: State) -> Change | None:
            nonlocal made
            whole = Move(move.group, offsets(state), move.members, move.dry_run, move.force)
            made = decisions.moves(state, whole)
            return decisions.move_offsets(state, self._queues, whole, self._broker)

        self._change(decide, lambda state: OffsetMoves(self._broker, move.group, move.dry_run, made), done)

    def _change(
        self, decide: Callable[[State], Change | None], answer: Callable[[State], Any], done: Done
    ) -> None:
        self._submit(ChangeState(decide, answer, done))
