"""The entry point: the tree of commands, and what an error becomes.

An error is its message and hint on stderr (a JSON document under -o json) and one
of these exit codes, so that scripts need not read sentences:

    0 done   1 failed   2 used wrongly   3 not found   4 unreachable or too late
    5 conflict   10 unhealthy   130 interrupted
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import rich_click as click

from rocketq import errors
from rocketq.cli import groups, sinks, topics
from rocketq.cli.brokers import cluster
from rocketq.cli.local import configuration, console, doctor, servers
from rocketq.cli.local import status as local
from rocketq.cli.messages import bench, dead_letters, export, leases, query, timers, traces, transactions
from rocketq.cli.messages import produce_consume as messages
from rocketq.cli.terminal import completion, context
from rocketq.cli.terminal.contexts import ContextNotFound
from rocketq.cli.terminal.output import FORMATS, output_option, say, show_one
from rocketq.errors import (
    group_errors,
    lease_errors,
    message_errors,
    registration_errors,
    replication_errors,
    sink_errors,
    topic_errors,
    transaction_errors,
)
from rocketq.local_cluster.server_process import ServerNotStarted

#: The first class an error is an instance of decides; what is not listed is 1.
EXIT_CODES: Final[tuple[tuple[type[errors.RocketqError], int], ...]] = (
    (errors.NotFound, 3),
    (errors.TopicNotFound, 3),
    (errors.QueueNotFound, 3),
    (errors.RouteNotFound, 3),
    (errors.TraceNotFound, 3),
    (ContextNotFound, 3),
    (sink_errors.SinkNotFound, 3),
    (group_errors.GroupNotFound, 3),
    (transaction_errors.TransactionNotFound, 3),
    (replication_errors.ElectionRefused, 5),
    (replication_errors.NotMaster, 5),
    (errors.Conflict, 5),
    (transaction_errors.TransactionDamaged, 5),
    (transaction_errors.TransactionDecidedOtherwise, 5),
    (registration_errors.BrokerNameTaken, 5),
    (sink_errors.SinkBusy, 5),
    (group_errors.MembersActive, 5),
    (group_errors.QueuesOwned, 5),
    (group_errors.ClaimLost, 5),
    (lease_errors.LeaseExpired, 5),
    (lease_errors.LeasesOutstanding, 5),
    (lease_errors.ReceiveFilterDiffers, 5),
    (topic_errors.UnreadMessages, 5),
    (errors.InvalidConfiguration, 2),
    (errors.InvalidName, 2),
    (message_errors.ReservedName, 2),
    (message_errors.InvalidMessage, 2),
    (errors.NameServersUnreachable, 4),
    (errors.BrokerUnreachable, 4),
    (errors.BrokerUnavailable, 4),
    (errors.SendFailed, 4),
    (errors.TooSlow, 4),
    (ServerNotStarted, 4),
)


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"rocketq {_installed_version()}")
        context.exit()


def _installed_version() -> str:
    from importlib.metadata import version as installed

    return installed("rocketq")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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


@rocketq.command()
@output_option
def version(output: str) -> None:
    """Show the version.

    \b
    Examples:
      rocketq version
      rocketq version -o json | jq -r .version
    """
    if output == "table":
        click.echo(f"rocketq {_installed_version()}")
    else:
        show_one({"version": _installed_version()}, output)


for command in (
    servers.up,
    local.status,
    local.down,
    servers.nameserver,
    servers.broker,
    console.console,
    topics.topic,
    messages.produce,
    messages.consume,
    leases.receive,
    leases.acknowledge,
    query.query,
    traces.trace,
    groups.group,
    sinks.sink,
    dead_letters.dlq,
    timers.timer,
    transactions.tx,
    cluster.cluster,
    configuration.config,
    completion.completion,
    context.context,
    bench.bench,
    export.export,
    doctor.doctor,
    doctor.demo,
):
    rocketq.add_command(command)


def exit_code(error: errors.RocketqError) -> int:
    """Return the exit code that tells this error's class."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; the script `rocketq` and `python -m rocketq.cli.main`."""
    state: dict[str, str] = {}
    try:
        code = rocketq.main(arguments, prog_name="rocketq", obj=state, standalone_mode=False)
    except errors.RocketqError as error:
        _tell(error, state.get("output", "table"))
        sys.exit(exit_code(error))
    except click.ClickException as error:
        if _output_of(arguments, state) == "table":
            error.show()
        else:
            say(json.dumps(_misuse(error)))
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        sys.exit(130)
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


def _tell(error: errors.RocketqError, output: str) -> None:
    if output == "table":
        say(f"error: {error.message}")
        if error.hint:
            say(f"  try: {error.hint}")
    else:
        say(json.dumps(error.document(), default=str))


if __name__ == "__main__":
    main()
