"""Topics over the whole cluster: the same change on the master of every chosen broker group.

A broker knows only its own topics, so a creation asks each master. It then waits until the NameServers
list the topic, from when on clients can use it. A change that fails on one broker is still made on the
others; then the first refusal is raised. The same call again completes the change (`if_absent`).

Each broker of a topic keeps the topic's *record*, the names of all that hold it (`TopicConfig.brokers`).
A creation tells every broker the whole list. A broker that certainly did not create the topic is taken off
the record again. A broker that may have created it stays: a reader notices a record that names too many
brokers, but not one that names too few.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

from msgspec.structs import replace

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors import (
    BrokerUnreachable,
    Conflict,
    InternalError,
    InvalidConfiguration,
    RemoteError,
    RocketqError,
    TopicNotFound,
)
from rocketq.errors.topic_errors import UnreadMessages
from rocketq.model import MessageQueue, TopicConfig
from rocketq.net.broker_api import BrokerApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import AlterTopicRequest, CreateTopicRequest, TopicDescription
from rocketq.protocol.documents.nameserver import BrokerIdentity
from rocketq.protocol.rules.reserved_names import check_user_topic

log = logging.getLogger("rocketq.admin.topics")

#: How long a change may take to show in the routes; brokers register changes at once.
ROUTE_WAIT_MS: Final = 3_000

T = TypeVar("T")


class TopicAdmin:
    """Creates, alters, describes and deletes topics on every master. Thread-safe."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._routes = routes
        self._masters = LiveMasters(transport, routes)

    def create(
        self,
        topic: str,
        request: CreateTopicRequest,
        *,
        brokers: Sequence[str] | None = None,
        cluster: str | None = None,
        wait_ms: int = ROUTE_WAIT_MS,
    ) -> dict[str, TopicConfig]:
        """Create the topic on masters and wait until its route names them; the key is the broker.

        It is made on every live master, on those of `cluster`, or on `brokers`. A topic that exists is a
        Conflict, also on a broker that was not chosen; with `request.if_absent` it spreads to the chosen
        ones that lack it. With `request.automatic` it is enough that one broker allows it.

        Raises InvalidName, ReservedName, InvalidConfiguration for an unknown broker or cluster,
        NoPermission, BrokerUnreachable, NameServersUnreachable.
        """
        check_user_topic(topic)
        identities = self._masters.identities()
        if not identities and brokers is None and cluster is None:
            raise BrokerUnreachable(
                "(any)",
                "no known address",
                f"no live broker is registered to create {topic!r} on",
                sent=False,
            )
        chosen = set(_chosen(identities, cluster, brokers))
        masters = {name: self._masters.api(identity) for name, identity in identities.items()}
        # One that does not answer is met again below if it was chosen.
        found, _ = _each(masters.values(), lambda broker: broker.topic(topic))
        if found and not request.if_absent:
            raise Conflict(
                f"topic {topic!r}", f"it exists already on {', '.join(sorted(found))}",
                "Alter it, or create it with if_absent (--if-absent), which adds the brokers that lack it.",
            )  # fmt: skip
        record = _record(found) | chosen
        wanted = replace(request, brokers=tuple(sorted(record)))
        done, failed = _each(
            [masters[name] for name in sorted(found.keys() | chosen)],
            lambda broker: broker.create_topic(topic, wanted),
        )
        unmade = {name for name, error in failed.items() if name not in found and not _may_be_done(error)}
        if unmade and done:
            done |= self._take_off(topic, [masters[name] for name in done], unmade)
        if failed and not (request.automatic and done):
            raise next(iter(failed.values()))
        if record > _record(found):
            _warn_of_absent(topic, record - done.keys() - failed.keys(), "its record is not renewed there")
        self._routes.wait_for_route(topic, wait_ms, brokers=done)
        return done

    def alter(self, topic: str, request: AlterTopicRequest) -> dict[str, TopicConfig]:
        """Change the topic on every broker that has it.

        Raises TopicNotFound when none does, and UnreadMessages before anything is changed where fewer
        read queues would leave messages unread and `request.force` is not set.
        """
        found = self.describe(topic)
        if request.read_queues is not None and not request.force:
            unread = {
                f"{broker}/{queue}": held.max - held.min
                for broker, one in sorted(found.items())
                for queue, held in enumerate(one.queues[: one.config.read_queues])
                if queue >= request.read_queues and held.max > held.min
            }
            if unread:
                raise UnreadMessages(topic, f"to {request.read_queues} read queues", unread)
        done = self._everywhere(topic, lambda broker: broker.alter_topic(topic, request))
        _warn_of_absent(topic, _record(found) - found.keys(), "it is not changed there")
        self._routes.invalidate(topic)
        return done

    def remove_broker(self, topic: str, broker: str, *, force: bool = False) -> dict[str, TopicConfig]:
        """Take a broker off the topic: off the record, and if it is alive the topic off the broker.

        For a broker that is gone for good, which bounded reads would otherwise wait for and fail. One that
        is alive and holds messages of the topic is refused with UnreadMessages unless `force`. Returns the
        topic as the other brokers have it. A broker that comes back with the topic is one of them again.
        Raises TopicNotFound, Conflict for the last one, InvalidConfiguration for one that is not on record.
        """
        masters = {each.broker: each for each in self._masters.apis()}
        found = self.describe(topic)
        others = [masters[name] for name in sorted(found) if name != broker and name in masters]
        if broker not in _record(found):
            raise InvalidConfiguration(
                "broker", broker, f"topic {topic!r} does not have it on record",
                hint=f"Its brokers: {', '.join(sorted(_record(found)))}.",
            )  # fmt: skip
        if not others:
            raise Conflict(
                f"topic {topic!r}", f"no other broker of it is alive than {broker}",
                "Delete the topic, or start another of its brokers first.",
            )  # fmt: skip
        if broker in found:
            held = {
                f"{broker}/{queue}": one.max - one.min
                for queue, one in enumerate(found[broker].queues)
                if one.max > one.min
            }
            if held and not force:
                raise UnreadMessages(topic, f"so that {broker} no longer holds it", held)
            masters[broker].delete_topic(topic)
        done = self._take_off(topic, others, {broker})
        self._routes.invalidate(topic)
        return done

    def delete(self, topic: str) -> None:
        """Delete the topic on every live broker that has it. Raises TopicNotFound when none does.

        A broker that is away keeps it, and is named in a warning: delete the topic again when it is back.
        """
        found = self.describe(topic)
        self._everywhere(topic, lambda broker: broker.delete_topic(topic))
        _warn_of_absent(topic, _record(found) - found.keys(), "the topic is not deleted there")
        self._routes.forget(topic)

    def configs(self) -> dict[str, tuple[TopicConfig, ...]]:
        """Return the topics that each live master has; the key is the broker."""
        return {master.broker: master.topics().topics for master in self._masters.apis()}

    def describe(self, topic: str) -> dict[str, TopicDescription]:
        """Return the topic as each broker has it. Raises TopicNotFound when none does."""
        return self._everywhere(topic, lambda broker: broker.topic(topic))

    def offsets_at(self, topic: str, at_us: int) -> dict[MessageQueue, int]:
        """Return for each queue the offset of its first message stored at or after a time, else its end."""
        return self._of_queues(topic, lambda api: api.offsets_at(topic, at_us).offsets)

    def ends(self, topic: str, end: Literal["earliest", "latest"]) -> dict[MessageQueue, int]:
        """Return for each queue the offset of its first message, or of the one that comes next."""
        return self._of_queues(
            topic,
            lambda api: [each.min if end == "earliest" else each.max for each in api.offsets(topic).queues],
        )

    def _of_queues(self, topic: str, ask: Callable[[BrokerApi], Sequence[int]]) -> dict[MessageQueue, int]:
        """Return the offset of each queue, of which each broker names its own in their order."""
        return {
            MessageQueue(topic, broker, queue): offset
            for broker, offsets in self._everywhere(topic, ask).items()
            for queue, offset in enumerate(offsets)
        }

    def _take_off(
        self, topic: str, brokers: Iterable[BrokerApi], removed: Collection[str]
    ) -> dict[str, TopicConfig]:
        """Take names off the record that these brokers keep; raise the first refusal."""
        change = AlterTopicRequest(remove_brokers=tuple(sorted(removed)))
        done, failed = _each(brokers, lambda broker: broker.alter_topic(topic, change))
        if failed:
            raise next(iter(failed.values()))
        return done

    def _everywhere(self, topic: str, change: Callable[[BrokerApi], T]) -> dict[str, T]:
        done, failed = _each(self._masters.apis(), change)
        absent = [error for error in failed.values() if isinstance(error, TopicNotFound)]
        others = [error for error in failed.values() if not isinstance(error, TopicNotFound)]
        if others:
            raise others[0]
        if not done:
            raise absent[0] if absent else TopicNotFound(topic, "(none is alive)")
        return done


def _chosen(
    masters: Mapping[str, BrokerIdentity], cluster: str | None, brokers: Collection[str] | None
) -> list[str]:
    """Return the names of the masters that are meant, sorted; raise InvalidConfiguration for unknown ones."""
    listed = ", ".join(f"{name} (cluster {masters[name].cluster})" for name in sorted(masters))
    there_are = f"Brokers that are alive: {listed or 'none'}."
    if cluster is not None and cluster not in {identity.cluster for identity in masters.values()}:
        raise InvalidConfiguration("cluster", cluster, "no live broker is of that cluster", hint=there_are)
    near = sorted(name for name, one in masters.items() if cluster is None or one.cluster == cluster)
    if brokers is None:
        return near
    unknown = sorted(set(brokers) - set(near))
    if unknown or not brokers:
        of_it = f" of cluster {cluster}" if cluster is not None else ""
        why = f"there is no live master{of_it} of that name" if unknown else "it names no broker"
        raise InvalidConfiguration("brokers", ", ".join(unknown), why, hint=there_are)
    return sorted(set(brokers))


def _record(found: Mapping[str, TopicDescription]) -> set[str]:
    """Return the brokers of a topic, as those that have it say together."""
    return found.keys() | {name for one in found.values() for name in one.config.brokers}


def _may_be_done(error: RocketqError) -> bool:
    """Whether a creation that failed so may have been carried out all the same."""
    if isinstance(error, BrokerUnreachable):
        return error.sent
    # Of the answers of a server only this one does not say that nothing was changed.
    return isinstance(error, InternalError) or not isinstance(error, RemoteError)


def _warn_of_absent(topic: str, absent: Collection[str], consequence: str) -> None:
    if absent:
        log.warning(
            "Topic %s is also on %s, by its record, and not asked there: %s. Repeat this when it is back, or "
            "take a broker that is gone for good off the topic: rocketq topic alter %s --remove-broker NAME.",
            topic, ", ".join(sorted(absent)), consequence, topic,
        )  # fmt: skip


def _each(
    brokers: Iterable[BrokerApi], change: Callable[[BrokerApi], T]
) -> tuple[dict[str, T], dict[str, RocketqError]]:
    """Apply a change to every broker; return what each gave, and what failed, by broker."""
    done: dict[str, T] = {}
    failed: dict[str, RocketqError] = {}
    for broker in brokers:
        try:
            done[broker.broker] = change(broker)
        except RocketqError as error:
            failed[broker.broker] = error
    return done, failed
