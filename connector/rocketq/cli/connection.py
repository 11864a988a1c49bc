"""The NameServer option, and the connections that a command opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

if TYPE_CHECKING:
    from rocketq.admin.cluster import ClusterAdmin
    from rocketq.client import Client
    from rocketq.protocol.broker_documents import TopicDescription

DEFAULT: Final = "http://127.0.0.1:9876"
F = TypeVar("F", bound=Callable[..., Any])


def nameservers_option(command: F) -> F:
    """Add `-s/--nameservers`: the flag, else ROCKETQ_NAMESERVERS, else this machine."""
    return click.option(
        "-s",
        "--nameservers",
        envvar="ROCKETQ_NAMESERVERS",
        default=DEFAULT,
        show_default=True,
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


def administration(nameservers: str) -> ClusterAdmin:
    """Open what an operator's command asks and changes the cluster with; use it in a `with` statement."""
    from rocketq.admin.cluster import ClusterAdmin

    return ClusterAdmin(nameservers)
