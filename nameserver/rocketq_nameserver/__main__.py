"""`python -m rocketq_nameserver`: one NameServer process.

stdout carries the one line that says where it listens; logs go to stderr. Exit codes:
0 after a stop in good order, 2 for settings or data that cannot be used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rocketq.http_server.connection.limits import ServerLimits
from rocketq.http_server.settings.server_command import Settings, write_settings
from rocketq.system.extras import need
from rocketq.system.platforms import check_servers_run_here
from rocketq_nameserver.nameserver_options import COMMAND, config_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the NameServer until it is told to stop; return the exit code."""
    return COMMAND.run(argv, _prepared)


def _prepared(settings: Settings) -> Callable[[], int]:
    """Check the settings, take data and port; return what serves. Raises InvalidConfiguration."""
    values = settings.values
    if values["show_config"]:
        write_settings(settings, values["show_config"])
        config_of(values)
        return lambda: 0
    check_servers_run_here()
    need("a NameServer", "server")
    # Only now: they need a POSIX system.
    from rocketq.http_server.logs import begin_log
    from rocketq.http_server.runner import Binding, address_of, listen, serve
    from rocketq_nameserver.app import create_app

    begin_log(settings)
    config = config_of(values)
    limits = ServerLimits(connections_max=values["connections_max"])
    app = create_app(config)
    listener = listen(Binding(config.host, config.port, insecure=values["insecure"], limits=limits))

    def run() -> int:
        app.bound(address_of(listener))
        return serve(
            app, service="nameserver", name=app.nameserver.table.server, listener=listener, limits=limits,
            parent_pid=values["parent_pid"],
        )  # fmt: skip

    return run


if __name__ == "__main__":
    sys.exit(main())
