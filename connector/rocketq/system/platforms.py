"""On which systems the servers run. It imports nothing that only some of them have."""

from __future__ import annotations

import sys

from rocketq.errors import InvalidConfiguration


def check_servers_run_here(platform: str | None = None) -> None:
    """Raise InvalidConfiguration on Windows, where NameServer and broker do not run.

    They need POSIX: locks on files, gathering writes at an offset, signals, limits of open files. Without
    `platform` it is this system's, as `sys.platform` names it.
    """
    here = platform or sys.platform
    if here == "win32":
        raise InvalidConfiguration(
            "platform", here, "rocketq's NameServer and broker do not run on Windows",
            hint="Run them in WSL 2, in a container, or on Linux or macOS.",
        )  # fmt: skip
