"""The options of a console, and the configuration that their values make.

A new setting is a field of `ConsoleConfig` and an option here, as those of the servers are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rocketq.console.console import DEFAULT_PORT, ConsoleConfig
from rocketq.console.observer import INTERVAL_MS
from rocketq.http_server.admission import hosts_given
from rocketq.http_server.settings.option_types import CommaList
from rocketq.http_server.settings.server_command import ServerCommand, option
from rocketq.net.route_cache import DEFAULT_NAMESERVER

COMMAND: Final = ServerCommand(
    "console",
    "Show one cluster on web pages.",
    [
        option(
            "--nameservers", type=CommaList("URL[,URL…]"), default=(DEFAULT_NAMESERVER,),
            envvar=["ROCKETQ_CONSOLE_NAMESERVERS", "ROCKETQ_NAMESERVERS"],
            help="NameServers of the cluster.",
        ),
        option("--host", default="127.0.0.1", help="The address to listen on."),
        option("--port", type=int, default=DEFAULT_PORT, help="The port to listen on; 0 takes a free one."),
        option("--allow-changes", is_flag=True, default=False, help="Let its pages change the cluster."),
        option(
            "--allowed-hosts", multiple=True, metavar="HOST[,HOST…]",
            help="Further names that it is called by; may be given several times.",
        ),
        option("--insecure", is_flag=True, default=False, help="Allow an address that others can reach."),
        option("--observe-ms", type=int, default=INTERVAL_MS, help="How often brokers are looked at."),
    ],
)  # fmt: skip


def config_of(values: Mapping[str, Any]) -> ConsoleConfig:
    """Return the configuration that the values of the options ask for; raise InvalidConfiguration."""
    return ConsoleConfig(
        nameservers=values["nameservers"],
        host=values["host"],
        port=values["port"],
        allowed_hosts=hosts_given(values["allowed_hosts"]),
        allow_changes=values["allow_changes"],
        observe_ms=values["observe_ms"],
    )
