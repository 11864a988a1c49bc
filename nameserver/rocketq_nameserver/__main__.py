"""`python -m rocketq_nameserver`: one NameServer process.

stdout carries the one line that says where it listens; logs go to stderr. Exit codes:
0 after a stop in good order, 2 for arguments or data that cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.admission import hosts_given
from rocketq.http_server.connection.limits import ServerLimits
from rocketq.system.platforms import check_servers_run_here
from rocketq_nameserver.config import DEFAULT_PORT, NameServerConfig


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    made = argparse.ArgumentParser(prog="rocketq_nameserver", description="Run one rocketq NameServer.")
    made.add_argument("--name", default="", help="what its answers call it; default: HOST:PORT")
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one")
    made.add_argument(
        "--allowed-hosts", action="append", default=[], metavar="HOST[,HOST…]",
        help="further names that it is called by; may be given several times",
    )  # fmt: skip
    made.add_argument("--insecure", action="store_true", help="allow an address that others can reach")
    made.add_argument("--data-dir", type=Path, help="keep the key-value configuration here")
    made.add_argument(
        "--register-dir", type=Path, metavar="DIR",
        help="be an acceptor of the broker groups' registers, and keep them here",
    )  # fmt: skip
    made.add_argument("--register-new", action="store_true", help="make DIR a new acceptor if it is none yet")
    made.add_argument("--scan-interval-ms", type=int, default=1_000, help="how often leases are looked at")
    made.add_argument(
        "--support-acting-master", action=argparse.BooleanOptionalAction, default=False,
        help="show the lowest slave of a group without master as its master, to read from",
    )  # fmt: skip
    made.add_argument("--connections-max", type=int, default=ServerLimits().connections_max)
    made.add_argument("--parent-pid", type=int, default=0, help="end when this process is gone")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the NameServer until it is told to stop; return the exit code."""
    arguments = parser().parse_args(argv)
    try:
        check_servers_run_here()
        # Only now: they need a POSIX system.
        from rocketq.http_server.runner import Binding, address_of, configure_logging, listen, serve
        from rocketq_nameserver.app import create_app

        configure_logging()
        config = NameServerConfig(
            name=arguments.name,
            host=arguments.host,
            port=arguments.port,
            allowed_hosts=hosts_given(arguments.allowed_hosts),
            data_dir=arguments.data_dir,
            register_dir=arguments.register_dir,
            register_is_new=arguments.register_new,
            scan_interval_ms=arguments.scan_interval_ms,
            support_acting_master=arguments.support_acting_master,
        )
        limits = ServerLimits(connections_max=arguments.connections_max)
        app = create_app(config)
        listener = listen(Binding(config.host, config.port, insecure=arguments.insecure, limits=limits))
    except InvalidConfiguration as error:
        print(f"rocketq_nameserver: {error}", file=sys.stderr)
        return 2
    address = address_of(listener)
    app.bound(address)
    return serve(
        app, service="nameserver", name=app.nameserver.table.server, listener=listener, limits=limits,
        parent_pid=arguments.parent_pid,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
