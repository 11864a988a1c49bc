"""The entry point: the tree of commands, and what an error becomes.

An error is its message and hint on stderr (a JSON document under -o json) and one
of these exit codes, so that scripts need not read sentences:

    0 done   1 failed   2 used wrongly   3 not found   4 unreachable or too late
    5 conflict   10 unhealthy   130 interrupted
"""

from __future__ import annotations

import json
import sys
from typing import Final

import rich_click as click

from rocketq import errors
from rocketq.cli import (
    cluster,
    doctor,
    groups,
    messages,
    query,
    servers,
    sinks,
    timers,
    topics,
    traces,
    transactions,
)
from rocketq.cli.output import say
from rocketq.errors import (
    group_errors,
    message_errors,
    registration_errors,
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
    (sink_errors.SinkNotFound, 3),
    (group_errors.GroupNotFound, 3),
    (transaction_errors.TransactionNotFound, 3),
    (errors.Conflict, 5),
    (transaction_errors.TransactionDecidedOtherwise, 5),
    (registration_errors.BrokerNameTaken, 5),
    (sink_errors.SinkBusy, 5),
    (group_errors.MembersActive, 5),
    (group_errors.QueuesOwned, 5),
    (group_errors.ClaimLost, 5),
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def rocketq() -> None:
    """Messaging for Apache Spark: topics on light HTTP brokers, read and written with format("rocketq").

    \b
    Start here:
      rocketq up                          a cluster on this machine
      echo hello | rocketq produce greetings
      rocketq consume greetings
    """


@rocketq.command()
def version() -> None:
    """Show the version.

    \b
    Examples:
      rocketq version
    """
    from importlib.metadata import version as installed

    click.echo(f"rocketq {installed('rocketq')}")


for command in (
    servers.up,
    servers.nameserver,
    servers.broker,
    topics.topic,
    messages.produce,
    messages.consume,
    query.query,
    traces.trace,
    groups.group,
    sinks.sink,
    timers.timer,
    transactions.tx,
    cluster.cluster,
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
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _tell(error: errors.RocketqError, output: str) -> None:
    if output == "table":
        say(f"error: {error.message}")
        if error.hint:
            say(f"  try: {error.hint}")
    else:
        say(json.dumps(error.document(), default=str))


if __name__ == "__main__":
    main()
