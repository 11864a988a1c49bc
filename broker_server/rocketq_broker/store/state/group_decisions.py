"""Decides what a request about a consumer group becomes: a change, nothing, or an error.

The functions are pure. The log writer calls them with the state at the moment when the change gets its place
in the log (as `topic_decisions`). They prevent what must never happen: that a queue has two owners in a
group, or that one who does not own a queue moves the progress in it. Who is a member is not in the log:
callers name the members where an operator's call must not work against them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from rocketq.errors import (
    Conflict,
    InvalidRequest,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
)
from rocketq.errors.group_errors import ClaimLost, GroupNotFound, MembersActive, QueuesOwned
from rocketq.errors.lease_errors import LeasesOutstanding
from rocketq.model import StartFrom
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset, GroupOffsets
from rocketq.protocol.documents.groups import (
    CloneRequest,
    GroupSettings,
    MemberCommit,
    OffsetMove,
    QueueClaim,
    RefusalReason,
    RefusedClaim,
    SetGroupRequest,
    StartRule,
)
from rocketq.protocol.rules.reserved_names import check_name, check_user_group
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.machines.claim_table import Place, QueuesClaimed
from rocketq_broker.store.machines.group_table import (
    GroupDeleted,
    GroupSet,
    OffsetsCommitted,
    QueueOffsetMap,
    QueuesReleased,
)
from rocketq_broker.store.state.state import State

#: What one broker keeps: each is in every picture of the state.
GROUPS_MAX: Final = 100_000
#: The most retries that a group's settings may ask for.
RETRIES_MAX_MAX: Final = 10_000

_UNSET_BY_NAME: Final = ("model", "start", "ordered")


# --- the group itself ---------------------------------------------------------------------


def create_group(state: State, group: str) -> GroupSet | None:
    """Decide that a group is there, with the default settings if it is new. Raises Invalid…, Conflict."""
    check_user_group(group)
    if group in state.groups:
        return None
    _check_room(state, group)
    return GroupSet(group, GroupSettings())


def set_group(state: State, group: str, request: SetGroupRequest) -> GroupSet | None:
    """Decide the settings of a group, which is created if it is new. Raises Invalid…, Conflict."""
    check_user_group(group)
    _check_room(state, group)
    old = state.groups.entry(group).settings
    settings = _settings(old, request)
    return None if group in state.groups and settings == old else GroupSet(group, settings)


def delete_group(state: State, group: str, members: Sequence[str], force: bool, broker: str) -> GroupDeleted:
    """Decide a deletion. Raises GroupNotFound, and MembersActive unless it is forced."""
    _check_exists(state, group, broker)
    _check_quiet(group, members, force, "deleted", broker)
    if not force:
        check_not_leased(state, group, state.leases.of_group(group), "deleted", broker)
    return GroupDeleted(group)


def check_start(rule: StartRule) -> None:
    """Raise InvalidRequest unless a start rule has a time exactly where it needs one."""
    if (rule.at_us is not None) != (rule.where is StartFrom.TIME):
        raise InvalidRequest("start", "at_us belongs to where=time, and to it alone")


def _settings(old: GroupSettings, request: SetGroupRequest) -> GroupSettings:
    names = ("enabled", "retries_max", "model", "start", "ordered")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(request, name)) is not None}
    for name in request.unset:
        if name not in _UNSET_BY_NAME or name in given:
            raise InvalidRequest(
                "unset", f"{name[:40]!r} cannot be unset" + (" and set at once" if name in given else ""),
                hint=f"These can: {', '.join(_UNSET_BY_NAME)}.",
            )  # fmt: skip
        given[name] = None
    settings = replace(old, **given)
    if not 0 <= settings.retries_max <= RETRIES_MAX_MAX:
        raise InvalidRequest("retries_max", f"{settings.retries_max} is not from 0 to {RETRIES_MAX_MAX}")
    if settings.start is not None:
        check_start(settings.start)
    return settings


# --- claims -------------------------------------------------------------------------------


def claim(
    state: State, group: str, client_id: str, asked: Iterable[Place], barred: Collection[str], broker: str
) -> QueuesClaimed | None:
    """Decide which of the asked queues a member gets: those that nobody owns, and not of `barred` topics.

    Raises LeasesOutstanding if messages of one are leased one by one.
    """
    _check_exists(state, group, broker)
    check_not_leased(state, group, asked, "owned by a member", broker)
    claims = state.claims.claims(group)
    granted = [
        place
        for place in dict.fromkeys(asked)
        if place not in claims and place[0] not in barred and _is_readable(state, place)
    ]
    return QueuesClaimed(group, client_id, tuple(granted), state.claims.epoch + 1) if granted else None


def claimed(
    state: State, group: str, client_id: str, asked: Iterable[Place], barred: Collection[str]
) -> tuple[tuple[QueueClaim, ...], tuple[RefusedClaim, ...]]:
    """Return what became of each asked queue, once `claim` is folded: granted, and refused."""
    claims, offsets = state.claims.claims(group), state.groups.offsets(group)
    granted: list[QueueClaim] = []
    refused: list[RefusedClaim] = []
    for place in dict.fromkeys(asked):
        found = claims.get(place)
        if found is not None and found.client_id == client_id:
            granted.append(QueueClaim(*place, *found, offsets.get(place)))
        elif found is not None:
            refused.append(RefusedClaim(*place, RefusalReason.OWNED, found.client_id))
        elif place[0] in barred and place[0] in state.topics:
            refused.append(RefusedClaim(*place, RefusalReason.NOT_ELIGIBLE))
        else:
            refused.append(RefusedClaim(*place, RefusalReason.NO_SUCH_QUEUE))
    return tuple(granted), tuple(refused)


def release(state: State, group: str, client_id: str, asked: Iterable[Place]) -> QueuesReleased | None:
    """Decide that a member releases queues; those that it does not own are passed over."""
    claims = state.claims.claims(group)
    mine = [p for p in dict.fromkeys(asked) if p in claims and claims[p].client_id == client_id]
    return QueuesReleased(group, client_id, tuple(mine)) if mine else None


def end_session(state: State, group: str, client_id: str) -> QueuesReleased | None:
    """Decide that a member owns nothing any more."""
    mine = tuple(place for place, _ in state.claims.owned_by(group, client_id))
    return QueuesReleased(group, client_id, mine) if mine else None


def check_owner(
    state: State, group: str, client_id: str, queues: Iterable[tuple[str, int, int]], broker: str
) -> None:
    """Raise ClaimLost unless a member owns each (topic, queue) under the epoch behind it."""
    claims = state.claims.claims(group)
    lost = []
    for topic, queue, epoch in queues:
        found = claims.get((topic, queue))
        if found != (client_id, epoch):
            owner, owner_epoch = ("", None) if found is None else found
            lost.append(
                {"topic": topic, "queue": queue, "epoch": epoch, "owner": owner, "owner_epoch": owner_epoch}
            )
    if lost:
        raise ClaimLost(group, client_id, broker, lost)


# --- progress -----------------------------------------------------------------------------


def commit_claimed(
    state: State, queues: Queues, group: str, commit: MemberCommit, broker: str
) -> OffsetsCommitted | QueuesReleased | None:
    """Decide a member's commit, all or nothing. Raises ClaimLost, OffsetOutOfRange."""
    places = [(each.topic, each.queue, each.epoch) for each in commit.offsets]
    check_owner(state, group, commit.client_id, places, broker)
    offsets = tuple(GroupOffset(each.topic, each.queue, each.offset) for each in commit.offsets)
    _check_offsets(state, queues, offsets, broker)
    moved = _moving(state.groups.offsets(group), offsets, commit.reset)
    if commit.release and offsets:
        return QueuesReleased(group, commit.client_id, tuple((t, q) for t, q, _ in places), moved)
    return OffsetsCommitted(group, moved) if moved else None


def commit_offsets(
    state: State, queues: Queues, group: str, request: CommitOffsetsRequest, broker: str
) -> OffsetsCommitted | None:
    """Decide a commit of one who is no member; offsets that would go back are left out unless `reset`.

    Raises QueuesOwned unless it is forced. RocketMQ: RemoteBrokerOffsetStore.updateOffset with increaseOnly.
    """
    check_name("group", group)
    _check_offsets(state, queues, request.offsets, broker)
    claims, table = state.claims.claims(group), state.groups.offsets(group)
    owners = {
        f"{each.topic}/{broker}/{each.queue}": claims[each.topic, each.queue].client_id
        for each in request.offsets
        if (each.topic, each.queue) in claims
    }
    if owners and not request.force:
        raise QueuesOwned(group, broker, owners)
    places = [(each.topic, each.queue) for each in request.offsets]
    if not request.force:
        check_not_leased(state, group, places, "moved from outside", broker)
    moved = _moving(table, request.offsets, request.reset)
    if owners or any(place in state.leases.of_group(group) for place in places):
        # Whoever owned a queue is to begin again at what is stored, also where the offset stays. So are the
        # receivers of a queue of which messages are leased: all of its leases end.
        to = {(each.topic, each.queue): each.offset for each in moved}
        moved = tuple(
            GroupOffset(*place, to[place] if place in to else table[place]) for place in dict.fromkeys(places)
        )
    kind = None if request.kind == state.groups.entry(group).kind else request.kind
    if not moved and kind is None:
        return None
    _check_room(state, group)
    return OffsetsCommitted(group, moved, bool(owners), kind)


@dataclass(frozen=True, slots=True)
class Move:
    """An operator's change of a group's progress: for whom, to where, and whether it may disturb members."""

    group: str
    offsets: tuple[GroupOffset, ...]
    members: tuple[str, ...]
    dry_run: bool
    force: bool


def move_offsets(state: State, queues: Queues, move: Move, broker: str) -> OffsetsCommitted | None:
    """Decide a reset or a clone. Raises MembersActive unless it is forced, OffsetOutOfRange."""
    if move.dry_run:
        _check_offsets(state, queues, move.offsets, broker)
        return None
    owners = {claim.client_id for claim in state.claims.claims(move.group).values()}
    _check_quiet(move.group, sorted({*move.members, *owners}), move.force, "moved", broker)
    if not move.force:
        check_not_leased(state, move.group, state.leases.of_group(move.group), "moved", broker)
    request = CommitOffsetsRequest(move.offsets, reset=True, force=True)
    return commit_offsets(state, queues, move.group, request, broker)


def moves(state: State, move: Move) -> tuple[OffsetMove, ...]:
    """Return what a reset or clone does to each queue, as seen before it is folded."""
    table = state.groups.offsets(move.group)
    return tuple(
        OffsetMove(each.topic, each.queue, table.get((each.topic, each.queue)), each.offset)
        for each in move.offsets
    )


def offsets_to_clone(state: State, group: str, request: CloneRequest, broker: str) -> tuple[GroupOffset, ...]:
    """Return the progress that a clone takes over. Raises GroupNotFound for its source."""
    check_user_group(group)
    if request.source == group:
        raise InvalidRequest("source", f"group {group!r} cannot be cloned to itself")
    _check_exists(state, request.source, broker)
    return tuple(
        GroupOffset(topic, queue, offset)
        for (topic, queue), offset in sorted(state.groups.offsets(request.source).items())
        if request.topic is None or topic == request.topic
    )


def committed(state: State, group: str, offsets: Iterable[Place], broker: str) -> GroupOffsets:
    """Return where a group stands in some queues; those without a commit are absent."""
    table = state.groups.offsets(group)
    found = (place for place in sorted(set(offsets)) if place in table)
    return GroupOffsets(broker, group, tuple(GroupOffset(*place, table[place]) for place in found))


# --- rules --------------------------------------------------------------------------------


def _moving(
    table: QueueOffsetMap, offsets: tuple[GroupOffset, ...], may_go_back: bool
) -> tuple[GroupOffset, ...]:
    """Return the offsets that change something: all others than now, or only those further on."""
    return tuple(
        each
        for each in offsets
        if (each.offset != table.get((each.topic, each.queue)))
        and (may_go_back or each.offset > table.get((each.topic, each.queue), -1))
    )


def _check_offsets(state: State, queues: Queues, offsets: Iterable[GroupOffset], broker: str) -> None:
    for each in offsets:
        entry = state.topics.get(each.topic)
        if entry is None:
            raise TopicNotFound(each.topic, broker)
        if not 0 <= each.queue < entry.queues:
            raise QueueNotFound(each.topic, each.queue, entry.queues)
        held = queues.range((entry.number, each.queue))
        if not 0 <= each.offset <= held.end:
            raise OffsetOutOfRange(each.topic, broker, each.queue, each.offset, held.min, held.end)


def _is_readable(state: State, place: Place) -> bool:
    entry = state.topics.get(place[0])
    return entry is not None and 0 <= place[1] < entry.config.read_queues


def check_not_leased(state: State, group: str, places: Iterable[Place], action: str, broker: str) -> None:
    """Raise LeasesOutstanding if messages of one of these queues are leased one by one."""
    own = state.leases.of_group(group)
    leased = {
        f"{topic}/{broker}/{queue}": own[topic, queue].count
        for topic, queue in places
        if (topic, queue) in own
    }
    if leased:
        raise LeasesOutstanding(group, broker, action, leased)


def _check_exists(state: State, group: str, broker: str) -> None:
    if group not in state.groups:
        raise GroupNotFound(group, broker)


def _check_quiet(group: str, members: Sequence[str], force: bool, action: str, broker: str) -> None:
    if members and not force:
        raise MembersActive(group, broker, action, list(members))


def _check_room(state: State, group: str) -> None:
    if group not in state.groups and len(state.groups.groups) >= GROUPS_MAX:
        raise Conflict(
            f"group {group!r}", f"the broker has {GROUPS_MAX} groups, its limit",
            "Delete groups that are not needed: rocketq group list.",
        )  # fmt: skip
