"""Consumer groups over the whole cluster: their progress, members and settings, on every live master.

A broker knows the groups for its own queues alone. What is told here is put together. What moves the progress
of a group is first tried on every broker (`dry_run`), and then made on each. A call that fails on one broker
in spite of that may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors import InvalidConfiguration, QueueNotFound, TopicNotFound
from rocketq.errors.group_errors import GroupNotFound, MembersActive
from rocketq.model import GroupKind, MessageModel, MessageQueue
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.groups import (
    CloneRequest,
    Difference,
    GroupDescription,
    GroupListing,
    GroupSettings,
    GroupSummary,
    Member,
    OffsetMoves,
    ProducerMember,
    ResetRequest,
    ResetTarget,
    SetGroupRequest,
    StartRule,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in one queue. `committed` is the next offset that the group reads.

    `lag` counts messages; `lag_ms` is the age of the next message to read. `owner` is the client id of the
    member that owns the queue. All are None where they are not known, which is not 0.
    """

    topic: str
    broker: str
    queue: int
    committed: int | None
    max: int | None
    lag: int | None
    lag_ms: int | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group on all brokers; `settings` are those of its first broker by name.

    `members` counts each client id once. A broker without the group is not among `brokers`.
    """

    group: str
    kind: GroupKind
    members: int
    topics: tuple[str, ...]
    brokers: tuple[str, ...]
    settings: GroupSettings


@dataclass(frozen=True, slots=True)
class GroupProducer:
    """A member of a producer group, as the broker that heard of it last tells; `brokers` all know it."""

    client_id: str
    member: ProducerMember
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as all brokers together know it.

    `last_heard_ms` is how long ago its last call to any of them was. `queues` are those that it owns.
    """

    client_id: str
    member: Member
    last_heard_ms: int
    queues: tuple[MessageQueue, ...]
    brokers: tuple[str, ...]
    differences: tuple[Difference, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class QueueMove:
    """What a reset or clone does to one queue; `before` is None if nothing was committed there."""

    topic: str
    broker: str
    queue: int
    before: int | None
    after: int


class GroupAdmin:
    """Asks and changes consumer groups on every live master. Thread-safe.

    Every method may raise BrokerUnreachable and NameServersUnreachable.
    """

    def __init__(self, masters: LiveMasters) -> None:
        self._masters = masters

    # --- what is ------------------------------------------------------------------

    def overviews(self) -> list[GroupOverview]:
        """Return all groups, by name."""
        return overviews_of({master.broker: master.groups() for master in self._masters.apis()})

    def describe(self, group: str) -> dict[str, GroupDescription]:
        """Return a group as each broker that has it knows it, by broker; raise GroupNotFound."""
        masters = self._masters.apis()
        found = _where_known(masters, lambda master: master.group(group))
        if not found:
            raise GroupNotFound(group, _named(masters))
        return found

    def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return a group's progress in every queue in which it committed or which a member owns.

        By topic, broker and queue. Raises GroupNotFound.
        """
        return progress_of(self.describe(group), topic)

    def members(self, group: str) -> list[GroupMember]:
        """Return the members of a group, by client id. Raises GroupNotFound."""
        return members_of(self.describe(group))

    def producers(self, group: str) -> list[GroupProducer]:
        """Return the members of a producer group, by client id; none is no error."""
        told: dict[str, list[tuple[str, ProducerMember]]] = {}
        for master in self._masters.apis():
            for each in master.producers(group).members:
                told.setdefault(each.client_id, []).append((master.broker, each))
        return [
            GroupProducer(
                client_id,
                min((member for _, member in found), key=lambda member: member.last_heard_ms),
                tuple(broker for broker, _ in found),
            )
            for client_id, found in sorted(told.items())
        ]

    # --- what changes -------------------------------------------------------------

    def set(
        self,
        group: str,
        *,
        enabled: bool | None = None,
        retries_max: int | None = None,
        model: MessageModel | None = None,
        start: StartRule | None = None,
        ordered: bool | None = None,
        unset: Collection[str] = (),
    ) -> dict[str, GroupSettings]:
        """Create a group, or change what is given of its settings, on every master; return them by broker.

        Disabling a group ends its members. `unset` names settings ("model", "start", "ordered") that its
        oldest member is to say again. Raises InvalidRequest, InvalidName, ReservedName.
        """
        request = SetGroupRequest(enabled, retries_max, model, start, ordered, tuple(unset))
        return {each.broker: each.set_group(group, request).settings for each in self._masters.apis()}

    def delete(self, group: str, *, force: bool = False) -> list[str]:
        """Forget a group with its progress on every broker that has it; return these brokers.

        Messages that wait for another attempt go with it; its dead letters stay.

        Raises GroupNotFound, and before anything is deleted MembersActive unless `force`. Members that still
        run create the group again.
        """
        known = self.describe(group)
        active = _client_ids(known)
        if active and not force:
            raise MembersActive(group, ", ".join(known), "deleted", active)
        masters = [each for each in self._masters.apis() if each.broker in known]
        return list(_where_known(masters, lambda master: master.delete_group(group, force=force)))

    def reset(
        self,
        group: str,
        topic: str,
        to: ResetTarget | str,
        *,
        offset: int | None = None,
        at_us: int | None = None,
        queues: Collection[MessageQueue] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[QueueMove]:
        """Put a group's progress in a topic elsewhere; return what was done, or with `dry_run` would be.

        `to` is "earliest", "latest", "offset" (with `offset`) or "time" (with `at_us`, the store time in µs
        since 1970); `queues` are all of the topic unless they are given. Raises GroupNotFound if no broker
        has the group, TopicNotFound, QueueNotFound, OffsetOutOfRange, and MembersActive unless `force`:
        nothing is changed then.
        """
        try:
            target = ResetTarget(to)
        except ValueError:
            hint = f"Use one of {', '.join(ResetTarget)}."
            raise InvalidConfiguration("to", to, "is no place to go to", hint=hint) from None
        self.describe(group)
        chosen: dict[str, tuple[int, ...]] | None = None
        if queues is not None:
            chosen = {}
            for each in sorted(queues):
                chosen[each.broker] = (*chosen.get(each.broker, ()), each.queue)
        masters = self._masters_of(topic, chosen)

        def reset(master: BrokerApi, dry_run: bool, force: bool) -> OffsetMoves:
            only = None if chosen is None else chosen[master.broker]
            request = ResetRequest(topic, target, offset, at_us, only, dry_run, force, create=True)
            return master.reset_group(group, request)

        return self._move(group, masters, reset, dry_run, force)

    def clone(
        self, source: str, group: str, *, topic: str | None = None, dry_run: bool = False, force: bool = False
    ) -> list[QueueMove]:
        """Give a group the progress of `source`, in one topic or in all; the group is created if it is new.

        Queues in which the source committed nothing stay as they are. Raises GroupNotFound for the source,
        and MembersActive unless `force`.
        """
        known = self.describe(source)
        masters = [each for each in self._masters.apis() if each.broker in known]

        def clone(master: BrokerApi, dry_run: bool, force: bool) -> OffsetMoves:
            return master.clone_group(group, CloneRequest(source, topic, dry_run, force))

        return self._move(group, masters, clone, dry_run, force)

    def _move(
        self,
        group: str,
        masters: list[BrokerApi],
        move: Callable[[BrokerApi, bool, bool], OffsetMoves],
        dry_run: bool,
        force: bool,
    ) -> list[QueueMove]:
        """Try a move on every broker, and unless it is a dry run make it on each."""
        found = {master.broker: move(master, True, force) for master in masters}
        if not dry_run:
            if not force:
                self._check_quiet(group, masters)
            found = {master.broker: move(master, False, force) for master in masters}
        return sorted(
            (
                QueueMove(each.topic, broker, each.queue, each.before, each.after)
                for broker, moves in found.items()
                for each in moves.moves
            ),
            key=lambda each: (each.topic, each.broker, each.queue),
        )

    def _check_quiet(self, group: str, masters: list[BrokerApi]) -> None:
        known = _where_known(masters, lambda master: master.group(group))
        active = _client_ids(known)
        if active:
            raise MembersActive(group, ", ".join(known), "moved", active)

    def _masters_of(self, topic: str, chosen: dict[str, tuple[int, ...]] | None) -> list[BrokerApi]:
        """Return the masters that have a topic, or those of the chosen queues."""
        masters = self._masters.apis()
        found = [each for each in masters if _has_topic(each, topic)]
        if not found:
            raise TopicNotFound(topic, _named(masters))
        if chosen is None:
            return found
        for broker, queues in chosen.items():
            if broker not in {each.broker for each in found}:
                raise QueueNotFound(topic, queues[0], 0, broker, _named(found))
        return [each for each in found if each.broker in chosen]


def overviews_of(listings: Mapping[str, GroupListing]) -> list[GroupOverview]:
    """Return the groups that some brokers list, by name; the key is the broker."""
    found: dict[str, dict[str, GroupSummary]] = {}
    for broker, listing in listings.items():
        for each in listing.groups:
            found.setdefault(each.group, {})[broker] = each
    return [_overview(group, known) for group, known in sorted(found.items())]


def progress_of(known: Mapping[str, GroupDescription], topic: str | None = None) -> list[QueueProgress]:
    """Return the progress that some brokers describe, by topic, broker and queue."""
    found = [
        QueueProgress(
            each.topic, broker, each.queue, each.committed, each.max, each.lag, each.lag_ms, each.owner
        )
        for broker, one in known.items()
        for each in one.queues
        if topic is None or each.topic == topic
    ]  # fmt: skip
    return sorted(found, key=lambda each: (each.topic, each.broker, each.queue))


def members_of(known: Mapping[str, GroupDescription]) -> list[GroupMember]:
    """Return the members that some brokers describe, by client id."""
    return [_member(client_id, known) for client_id in _client_ids(known)]


def _client_ids(known: Mapping[str, GroupDescription]) -> list[str]:
    return sorted({each.member.client_id for one in known.values() for each in one.members})


def _has_topic(master: BrokerApi, topic: str) -> bool:
    try:
        master.topic(topic)
    except TopicNotFound:
        return False
    return True


def _where_known(masters: list[BrokerApi], call: Callable[[BrokerApi], T]) -> dict[str, T]:
    """Make a call to each broker; return what those answered that have the group, by broker."""
    found: dict[str, T] = {}
    for master in masters:
        try:
            found[master.broker] = call(master)
        except GroupNotFound:
            continue
    return found


def _named(masters: list[BrokerApi]) -> str:
    return ", ".join(each.broker for each in masters)


def _overview(group: str, known: Mapping[str, GroupSummary]) -> GroupOverview:
    kinds = {one.kind for one in known.values()}
    return GroupOverview(
        group,
        GroupKind.SPARK if GroupKind.SPARK in kinds else GroupKind.CONSUMERS,
        len({client_id for one in known.values() for client_id in one.members}),
        tuple(sorted({topic for one in known.values() for topic in one.topics})),
        tuple(known),
        next(iter(known.values())).settings,
    )


def _member(client_id: str, known: Mapping[str, GroupDescription]) -> GroupMember:
    seen = {
        broker: each
        for broker, one in known.items()
        for each in one.members
        if each.member.client_id == client_id
    }
    # A broker that was restarted may not have heard of the member again.
    best = max(seen.values(), key=lambda each: (each.member.heard, -each.last_heard_ms))
    queues = sorted(
        MessageQueue(each.topic, broker, each.queue)
        for broker, one in known.items()
        for each in one.queues
        if each.owner == client_id
    )
    differences = {
        each: None for one in known.values() for each in one.differences if each.client_id == client_id
    }
    last_heard_ms = min(each.last_heard_ms for each in seen.values())
    return GroupMember(client_id, best.member, last_heard_ms, tuple(queues), tuple(seen), tuple(differences))
