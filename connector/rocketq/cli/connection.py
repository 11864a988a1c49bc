"""Where the cluster is, and talking to it, for every command that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import rich_click as click

if TYPE_CHECKING:
    from rocketq.client import Client
    from rocketq.net.broker_api import BrokerApi
    from rocketq.net.route_cache import RouteCache
    from rocketq.protocol.broker_documents import TopicDescription

DEFAULT: Final = "http://127.0.0.1:9876"
F = TypeVar("F", bound=Callable[..., Any])
#: How a broker is called; a command may need more than BrokerApi.
Api = TypeVar("Api", bound="BrokerApi")


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


class Administration(Generic[Api]):
    """What operators ask: every master broker, rather than the ones a topic's route names."""

    def __init__(self, routes: RouteCache, api: Callable[[str, str], Api]) -> None:
        self.routes = routes
        self._api = api

    def masters(self) -> list[Api]:
        """Return the master of every broker group that is alive, by name."""
        from rocketq.protocol.nameserver_documents import MASTER_ID

        alive = (live.identity for live in self.routes.cluster().brokers)
        masters = {one.broker: one.address for one in alive if one.broker_id == MASTER_ID}
        return [self._api(name, masters[name]) for name in sorted(masters)]


@contextmanager
def administration(nameservers: str) -> Iterator[Administration[BrokerApi]]:
    """Open the connections an operator's command needs, and close them after it."""
    from rocketq.net.broker_api import BrokerApi
    from rocketq.net.route_cache import RouteCache
    from rocketq.net.transport import Transport

    with Transport() as transport:
        yield Administration(
            RouteCache(nameservers, transport), lambda name, address: BrokerApi(transport, name, address)
        )
