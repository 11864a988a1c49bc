"""`python -m rocketq_broker`: one broker process.

stdout carries the one line that says where it listens; logs go to stderr. Exit codes:
0 after a stop in good order, 1 if the store could not be opened or failed, 2 for
settings that make no sense, 5 if another live process has the broker's name.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from rocketq.http_server.connection.limits import ServerLimits
from rocketq.http_server.settings.server_command import Settings, write_settings
from rocketq.system.extras import need
from rocketq.system.platforms import check_servers_run_here
from rocketq_broker.broker_options import COMMAND, config_of
from rocketq_broker.runtime.memory_settings import collect_rarely, keep_freed_memory, leave_out_pandas


def main(argv: Sequence[str] | None = None) -> int:
    """Run the broker until it is told to stop; return the exit code."""
    return COMMAND.run(argv, _prepared)


def _prepared(settings: Settings) -> Callable[[], int]:
    """Check the settings and take the port; return what serves. Raises InvalidConfiguration."""
    values = settings.values
    if values["show_config"]:
        write_settings(settings, values["show_config"])
        settings.needed("name", "data_dir")
        config_of(values)
        return lambda: 0
    settings.needed("name", "data_dir")
    check_servers_run_here()
    need("a broker", "server")
    # Only now: they need a POSIX system.
    from rocketq.http_server.logs import begin_log
    from rocketq.http_server.runner import Binding, address_of, listen, serve

    begin_log(settings)
    keep_freed_memory()
    leave_out_pandas()
    # Only now: modules of the app make Arrow arrays when they are imported.
    from rocketq_broker.app import create_app

    limits = ServerLimits()
    config = config_of(values)
    listener = listen(Binding(config.host, config.port, insecure=values["insecure"], limits=limits))

    def run() -> int:
        # A fault ends the process the way an operator would: in good order, only with another exit code.
        app = create_app(config, on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM))
        collect_rarely()
        app.bound(address_of(listener))
        code = serve(
            app, service="broker", name=config.name, listener=listener, limits=limits,
            parent_pid=values["parent_pid"],
        )  # fmt: skip
        if app.failure is not None:
            print(f"rocketq_broker: {app.failure}", file=sys.stderr)
        return code

    return run


if __name__ == "__main__":
    sys.exit(main())
