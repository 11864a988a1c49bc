"""`python -m rocketq.console`: one console process; `rocketq console` is the same.

stdout carries the one line that says where it listens, stderr a sentence for a person, and logs. Exit codes:
0 after a stop in good order, 2 for settings that cannot be used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rocketq.errors import ExtraMissing
from rocketq.http_server.settings.server_command import MISUSED, Settings, write_settings
from rocketq.system.extras import need


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console until it is told to stop; return the exit code."""
    try:
        need("the console", "server")
    except ExtraMissing as error:
        print(f"rocketq_console: {error}", file=sys.stderr)
        return MISUSED
    # Only now: it needs the extra.
    from rocketq.console.console_options import COMMAND

    return COMMAND.run(argv, _prepared)


def _prepared(settings: Settings) -> Callable[[], int]:
    """Check the settings and take the port; return what serves. Raises InvalidConfiguration."""
    # Only now: they need the extra.
    from rocketq.console.app import ConsoleApp
    from rocketq.console.console import Console
    from rocketq.console.console_options import config_of
    from rocketq.http_server.logs import begin_log
    from rocketq.http_server.runner import Binding, address_of, listen, serve

    values = settings.values
    if values["show_config"]:
        write_settings(settings, values["show_config"])
        config_of(values)
        return lambda: 0
    begin_log(settings)
    config = config_of(values)
    binding = Binding(config.host, config.port, insecure=values["insecure"])
    app = ConsoleApp(Console(config))
    listener = listen(binding)
    can = "it may change the cluster" if config.allow_changes else "read-only; --allow-changes ends that"
    print(f"The console is at {address_of(listener)} ({can}). Ctrl-C stops it.", file=sys.stderr)
    return lambda: serve(
        app, service="console", name="console", listener=listener, limits=binding.limits,
        parent_pid=values["parent_pid"],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
