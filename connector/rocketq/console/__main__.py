"""`python -m rocketq.console`: one console process; `rocketq console` is the same.

stdout carries the one line that says where it listens, stderr a sentence for a person, and logs. Exit codes:
0 after a stop in good order, 2 for arguments that cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rocketq.console.app import ConsoleApp
from rocketq.console.console import DEFAULT_PORT, Console, ConsoleConfig
from rocketq.console.observer import INTERVAL_MS
from rocketq.errors import InvalidConfiguration
from rocketq.http_server.admission import hosts_given
from rocketq.http_server.logs import configure_logging
from rocketq.http_server.runner import Binding, address_of, listen, serve
from rocketq.net.route_cache import DEFAULT_NAMESERVER


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    made = argparse.ArgumentParser(prog="rocketq console", description="Show one cluster on web pages.")
    made.add_argument("--nameservers", default=DEFAULT_NAMESERVER, help="addresses, comma-separated")
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one")
    made.add_argument("--allow-changes", action="store_true", help="let its pages change the cluster")
    made.add_argument("--allowed-hosts", action="append", default=[], metavar="HOST[,HOST…]")
    made.add_argument("--insecure", action="store_true", help="allow an address that others can reach")
    made.add_argument("--observe-ms", type=int, default=INTERVAL_MS, help="how often brokers are looked at")
    made.add_argument("--parent-pid", type=int, default=0, help="end when this process is gone")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console until it is told to stop; return the exit code."""
    arguments = parser().parse_args(argv)
    configure_logging()
    try:
        binding = Binding(arguments.host, arguments.port, insecure=arguments.insecure)
        config = ConsoleConfig(
            nameservers=arguments.nameservers,
            host=arguments.host,
            port=arguments.port,
            allowed_hosts=hosts_given(arguments.allowed_hosts),
            allow_changes=arguments.allow_changes,
            observe_ms=arguments.observe_ms,
        )
        app = ConsoleApp(Console(config))
        listener = listen(binding)
    except InvalidConfiguration as error:
        print(f"rocketq console: {error}", file=sys.stderr)
        return 2
    can = "it may change the cluster" if config.allow_changes else "read-only; --allow-changes ends that"
    print(f"The console is at {address_of(listener)} ({can}). Ctrl-C stops it.", file=sys.stderr)
    return serve(
        app, service="console", name="console", listener=listener, limits=binding.limits,
        parent_pid=arguments.parent_pid,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
