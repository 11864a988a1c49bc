"""`rocketq status` and `rocketq down`: the cluster that `rocketq up` keeps up on this machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.output import UNHEALTHY, done, output_option, say, show
from rocketq.system.platforms import check_servers_run_here

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS: Final = ("server", "address", "state")
NOTHING: Final = 3
TOO_LATE: Final = 4
STOP_TIMEOUT_S: Final = 60.0
ANSWER_S: Final = 3.0

data_dir_option: Final[Callable[[Any], Any]] = click.option(
    "--data-dir",
    default="rocketq-data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory that `up` was given.",
)


@click.command()
@data_dir_option
@output_option
def status(data_dir: Path, output: str) -> int:
    """Show the servers that `rocketq up` keeps up. Exit code 3: none is up; 10: one is not ready.

    \b
    Examples:
      rocketq status
      rocketq status --data-dir /var/tmp/rocketq -o json
    """
    found = _find(data_dir)
    rows = [] if found is None else [_row(name, address) for name, address in found.items()]
    show(rows, output, COLUMNS)
    if found is None:
        say(f"nothing is up in {data_dir}; start it: rocketq up --data-dir {data_dir}")
        return NOTHING
    return 0 if all(row["state"] == "ready" for row in rows) else UNHEALTHY


@click.command()
@data_dir_option
@output_option
def down(data_dir: Path, output: str) -> int:
    """Stop the cluster that `rocketq up` keeps up, in good order; its messages stay. Exit code 3: none is up.

    \b
    Examples:
      rocketq down
      rocketq down --data-dir /var/tmp/rocketq
    """
    check_servers_run_here()
    from rocketq.local_cluster.up_file import find_up, wait_until_down

    found = find_up(data_dir)
    if found is None:
        done(f"nothing is up in {data_dir}", [], output)
        return NOTHING
    os.kill(found.pid, signal.SIGTERM)
    if not wait_until_down(data_dir, STOP_TIMEOUT_S):
        say(f"error: process {found.pid} has not ended after {STOP_TIMEOUT_S:.0f} s; look at {data_dir}/logs")
        return TOO_LATE
    stopped = [{"server": name, "address": address} for name, address in found.servers.items()]
    done(f"stopped {len(stopped)} server(s); the messages are in {data_dir}", stopped, output)
    return 0


def _find(data_dir: Path) -> dict[str, str] | None:
    check_servers_run_here()
    from rocketq.local_cluster.up_file import find_up

    found = find_up(data_dir)
    return None if found is None else dict(found.servers)


def _row(name: str, address: str) -> dict[str, Any]:
    import urllib3

    path = "/readyz"
    try:
        answer = urllib3.request("GET", address + path, retries=False, timeout=ANSWER_S)
    except urllib3.exceptions.HTTPError as error:
        return {"server": name, "address": address, "state": f"does not answer: {type(error).__name__}"}
    missing = {} if answer.status == 200 else json.loads(answer.data).get("missing", {})
    why = "; ".join(f"{what}: {text}" for what, text in missing.items())
    state = "ready" if answer.status == 200 else f"not ready: {why}"
    return {"server": name, "address": address, "state": state}
