"""Topics over the whole cluster: the same change on the master of every broker group.

A broker knows only its own topics, so creating one means asking each master,
and it is usable when the NameServers tell of it, which is waited for here. A change that
fails on one broker is still made on the others; then the first refusal is raised, and the same call
again completes it (`if_absent`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from rocketq.broker_api import BrokerApi
from rocketq.errors import BrokerUnreachable, RocketqError, TopicNotFound
from rocketq.protocol.calls import AlterTopicRequest, CreateTopicRequest, TopicDescription
from rocketq.protocol.model import TopicConfig
from rocketq.protocol.reserved_names import check_user_topic
from rocketq.protocol.route import MASTER_ID, TopicRoute
from rocketq.routes import RouteCache
from rocketq.transport import Transport

#: How long a change may take to show in the routes; brokers register changes at once.
ROUTE_WAIT_MS: Final = 3_000

T = TypeVar("T")


class TopicAdmin:
    """Creates, alters, describes and deletes topics on every master. Thread-safe."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._transport = transport
        self._routes = routes

    def masters(self, cluster: str | None = None) -> list[BrokerApi]:
        """Return the live masters, by name; of one cluster if it is named."""
        identities = [b.identity for b in self._routes.cluster().brokers if b.identity.broker_id == MASTER_ID]
        chosen = [i for i in identities if cluster is None or i.cluster == cluster]
        return [
            BrokerApi(self._transport, i.broker, i.address) for i in sorted(chosen, key=lambda i: i.broker)
        ]

    def create(
        self,
        topic: str,
        request: CreateTopicRequest,
        *,
        cluster: str | None = None,
        wait_ms: int = ROUTE_WAIT_MS,
    ) -> dict[str, TopicConfig]:
        """Create the topic on every master and wait until its route names them all; the key is the broker.

        With `request.automatic` it is enough that one broker allows it. Raises Conflict where it exists
        already (unless `if_absent`), InvalidName, ReservedName, NoPermission, BrokerUnreachable,
        NameServersUnreachable.
        """
        check_user_topic(topic)
        masters = self.masters(cluster)
        if not masters:
            raise BrokerUnreachable(
                "(any)",
                "no known address",
                f"no live broker is registered to create {topic!r} on",
                sent=False,
            )
        done, failed = _each(masters, lambda broker: broker.create_topic(topic, request))
        if failed and not (request.automatic and done):
            raise failed[0]
        self._routes.wait_for_route(topic, wait_ms, brokers=done)
        return done

    def alter(self, topic: str, request: AlterTopicRequest) -> dict[str, TopicConfig]:
        """Change the topic on every broker that has it. Raises TopicNotFound when none does."""
        done = self._everywhere(topic, lambda broker: broker.alter_topic(topic, request))
        self._routes.invalidate(topic)
        return done

    def delete(self, topic: str) -> None:
        """Delete the topic on every broker that has it. Raises TopicNotFound when none does."""
        self._everywhere(topic, lambda broker: broker.delete_topic(topic))
        self._routes.forget(topic)

    def describe(self, topic: str) -> dict[str, TopicDescription]:
        """Return the topic as each broker has it. Raises TopicNotFound when none does."""
        return self._everywhere(topic, lambda broker: broker.topic(topic))

    def route(self, topic: str) -> TopicRoute:
        return self._routes.route(topic)

    def _everywhere(self, topic: str, change: Callable[[BrokerApi], T]) -> dict[str, T]:
        done, failed = _each(self.masters(), change)
        absent = [error for error in failed if isinstance(error, TopicNotFound)]
        others = [error for error in failed if not isinstance(error, TopicNotFound)]
        if others:
            raise others[0]
        if not done:
            raise absent[0] if absent else TopicNotFound(topic, "(none is alive)")
        return done


def _each(
    brokers: list[BrokerApi], change: Callable[[BrokerApi], T]
) -> tuple[dict[str, T], list[RocketqError]]:
    """Apply a change to every broker; return what each gave, and what failed."""
    done: dict[str, T] = {}
    failed: list[RocketqError] = []
    for broker in brokers:
        try:
            done[broker.broker] = change(broker)
        except RocketqError as error:
            failed.append(error)
    return done, failed
