"""The options of a NameServer, and the configuration that their values make.

A new setting is a field of `NameServerConfig` and an option here; a flag, an environment variable and a
line of the configuration file follow from it, and so does `docs/configuration.md` (`python3 dev.py pages`
writes it).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from rocketq.http_server.admission import hosts_given
from rocketq.http_server.connection.limits import ServerLimits
from rocketq.http_server.settings.server_command import ServerCommand, option
from rocketq_nameserver.config import DEFAULT_PORT, NameServerConfig

COMMAND: Final = ServerCommand(
    "nameserver",
    "Run one rocketq NameServer.",
    [
        option("--name", default="", help="What its answers call it; otherwise HOST:PORT."),
        option("--host", default="127.0.0.1", help="The address to listen on."),
        option("--port", type=int, default=DEFAULT_PORT, help="The port to listen on; 0 takes a free one."),
        option("--insecure", is_flag=True, default=False, help="Allow an address that others can reach."),
        option(
            "--allowed-hosts", multiple=True, metavar="HOST[,HOST…]",
            help="Further names that it is called by; may be given several times.",
        ),
        option("--data-dir", type=click.Path(path_type=Path), help="Keep the key-value configuration here."),
        option(
            "--register-dir", type=click.Path(path_type=Path), metavar="DIR",
            help="Be an acceptor of the broker groups' registers, and keep them here.",
        ),
        option(
            "--register-new", is_flag=True, default=False, help="Make DIR a new acceptor if it is none yet."
        ),
        option("--scan-interval-ms", type=int, default=1_000, help="How often leases are looked at."),
        option(
            "--support-acting-master/--no-support-acting-master", default=False,
            help="Show the lowest slave of a group without master as its master, to read from.",
        ),
        option(
            "--connections-max", type=int, default=ServerLimits().connections_max,
            help="Open connections; further ones are answered 503.",
        ),
    ],
)  # fmt: skip


def config_of(values: Mapping[str, Any]) -> NameServerConfig:
    """Return the configuration that the values of the options ask for; raise InvalidConfiguration."""
    return NameServerConfig(
        name=values["name"],
        host=values["host"],
        port=values["port"],
        allowed_hosts=hosts_given(values["allowed_hosts"]),
        data_dir=values["data_dir"],
        register_dir=values["register_dir"],
        register_is_new=values["register_new"],
        scan_interval_ms=values["scan_interval_ms"],
        support_acting_master=values["support_acting_master"],
    )
