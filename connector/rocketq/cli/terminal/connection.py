"""The NameServer option, and the connections that a command opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from rocketq.cli.terminal.contexts import default_nameservers

if TYPE_CHECKING:
    from rocketq.admin.cluster import ClusterAdmin
    from rocketq.client import Client
    from rocketq.model import MessageQueue, QueueOffsets
    from rocketq.protocol.documents.broker import TopicDescription

F = TypeVar("F", bound=Callable[..., Any])


def nameservers_option(command: F) -> F:
    """Add `-s/--nameservers`: the flag, else ROCKETQ_NAMESERVERS, else the context, else this machine."""
    return click.option(
        "-s",
        "--nameservers",
        envvar="ROCKETQ_NAMESERVERS",
        default=default_nameservers,
        show_default="the context's, or http://127.0.0.1:9876",
        show_envvar=True,
        help="NameServer addresses, comma-separated.",
    )(command)


def connect(nameservers: str) -> Client:
    """Open a client; nothing is called before it is used."""
    from rocketq.client import Client

    return Client(nameservers)


def described(client: Client, topic: str) -> dict[str, TopicDescription]:
    """Return a topic as each broker has it; raise RouteNotFound naming the nearest one."""
    client.route(topic)
    return client.describe_topic(topic)


def extents_of(client: Client, topic: str) -> dict[MessageQueue, QueueOffsets]:
    """Return the range of each queue that holds anything now."""
    from rocketq.model import MessageQueue

    return {
        MessageQueue(topic, broker, number): queue
        for broker, description in described(client, topic).items()
        for number, queue in enumerate(description.queues)
        if queue.max > queue.min
    }


def administration(nameservers: str) -> ClusterAdmin:
    """Open what an operator's command asks and changes the cluster with; use it in a `with` statement."""
    from rocketq.admin.cluster import ClusterAdmin

    return ClusterAdmin(nameservers)
