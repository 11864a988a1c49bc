"""The entry point: the root of the commands (`rocketq/cli/commands.py`), and what an error becomes.

An error is its message and hint on stderr (a JSON document under -o json) and one
of these exit codes, so that scripts need not read sentences:

    0 done   1 failed   2 used wrongly   3 not found   4 unreachable or too late
    5 conflict   10 unhealthy   130 interrupted
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import rich_click as click

from rocketq.cli.commands import COMMANDS
from rocketq.cli.terminal.deferred_commands import DeferredGroup
from rocketq.cli.terminal.output import FORMATS, say


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from rocketq.cli.terminal.version import installed_version

        click.echo(f"rocketq {installed_version()}")
        context.exit()


@click.group(
    cls=DeferredGroup,
    deferred=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def rocketq() -> None:
    """Messaging for Apache Spark: topics on light HTTP brokers, read and written with format("rocketq").

    \b
    Start here:
      rocketq up                          a cluster on this machine
      echo hello | rocketq produce greetings
      rocketq consume greetings

    \b
    Data goes to stdout, everything else to stderr. Exit codes:
      0 done   1 failed   2 used wrongly   3 not found   4 unreachable or too late
      5 conflict   10 unhealthy   130 interrupted
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; the script `rocketq` and `python -m rocketq.cli.main`."""
    state: dict[str, str] = {}
    try:
        code = rocketq.main(arguments, prog_name="rocketq", obj=state, standalone_mode=False)
    except click.ClickException as error:
        if _output_of(arguments, state) == "table":
            error.show()
        else:
            say(json.dumps(_misuse(error)))
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - rocketq's own errors are imported only if there is an error
        sys.exit(_tell(error, state.get("output", "table")))
    sys.exit(code if isinstance(code, int) else 0)


def _output_of(arguments: list[str] | None, state: Mapping[str, str]) -> str:
    """Return the asked form, also where what is wrong was met before its option was read."""
    given = sys.argv[1:] if arguments is None else arguments
    asked = [
        value
        for option, value in zip([*given, ""], [*given[1:], "", ""], strict=True)
        if option in ("-o", "--output")
    ]
    asked += [option.removeprefix("--output=") for option in given if option.startswith("--output=")]
    asked += [option[2:] for option in given if option.startswith("-o") and option[2:] in FORMATS]
    return state.get("output") or next((each for each in asked if each in FORMATS), "table")


def _misuse(error: click.ClickException) -> dict[str, Any]:
    """Return an error of the command line itself in the form that all errors have."""
    is_usage = isinstance(error, click.UsageError)
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "rocketq"
    hint = f"See {path} --help." if is_usage else ""
    code = "USAGE" if is_usage else "FAILED"
    return {"code": code, "message": error.format_message(), "hint": hint, "facts": {}}


def _tell(error: Exception, output: str) -> int:
    """Say what failed, and return the exit code. An error that is not rocketq's own passes on."""
    from rocketq.cli.terminal.exit_codes import exit_code
    from rocketq.errors import RocketqError

    if not isinstance(error, RocketqError):
        raise error
    if output != "table":
        say(json.dumps(error.document(), default=str))
    else:
        say(f"error: {error.message}")
        if error.hint:
            say(f"  try: {error.hint}")
    return exit_code(error)


if __name__ == "__main__":
    main()
