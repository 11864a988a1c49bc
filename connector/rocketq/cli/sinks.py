"""`rocketq sink list|describe|reset|delete`: the exactly-once sinks, as all brokers together know them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import confirm, done, output_option, say, show

if TYPE_CHECKING:
    from rocketq.protocol.documents.sinks import SinkDescription

LIST_COLUMNS: Final = ("sink", "coordinator", "query", "run", "decided", "pending", "staged", "staged_bytes")


@click.group()
def sink() -> None:
    """Look at exactly-once sinks, and forget what they no longer need."""


@sink.command("list")
@nameservers_option
@output_option
def list_sinks(nameservers: str, output: str) -> None:
    """List all sinks: the last batch decided, and how many are pending or staged.

    \b
    Examples:
      rocketq sink list
      rocketq sink list -o jsonl | jq 'select(.pending > 0)'
    """
    with administration(nameservers) as admin:
        found = admin.sinks.summaries()
    show([asdict(each) for each in found], output, LIST_COLUMNS)


@sink.command("describe")
@click.argument("name")
@nameservers_option
@output_option
def describe(name: str, nameservers: str, output: str) -> None:
    """Show a sink as each broker knows it: what it has decided, awaits, has staged and is publishing.

    \b
    Examples:
      rocketq sink describe orders-copy
      rocketq sink describe orders-copy -o json
    """
    with administration(nameservers) as admin:
        found = admin.sinks.describe(name)
    show([_row(each) for each in found], output)
    if output == "table":
        for pending in (pending for each in found for pending in each.pending if pending.problem):
            say(f"batch {pending.batch} awaits {', '.join(pending.brokers)}: {pending.problem}")
        if len({each.coordinator for each in found}) > 1:
            say("The brokers name different coordinators: keep one (docs/operations.md, Two coordinators).")


@sink.command("reset")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def reset(name: str, yes: bool, nameservers: str, output: str) -> None:
    """Forget which batches were decided, so that a query with a new checkpoint can write.

    What is written stays. Without a reset such a query is refused, since it numbers its
    batches from 0 again.

    \b
    Examples:
      rocketq sink reset orders-copy
      rocketq sink reset orders-copy --yes
    """
    with administration(nameservers) as admin:
        coordinator = admin.sinks.coordinator(name)
        if not yes:
            confirm(name, "forget what it has decided")
        coordinator.reset_sink(name)
    rows = [{"sink": name, "broker": coordinator.broker}]
    done(f"reset {name} on {coordinator.broker}", rows, output)


@sink.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Give up what is decided and not published everywhere.")
@click.option("--broker", "only", multiple=True, help="Only on this broker; may be given several times.")
@nameservers_option
@output_option
def delete(name: str, yes: bool, force: bool, only: tuple[str, ...], nameservers: str, output: str) -> None:
    """Forget a sink on every broker, with what is staged and undecided. What is written stays.

    \b
    Examples:
      rocketq sink delete orders-copy
      rocketq sink delete orders-copy --yes --force
      rocketq sink delete orders-copy --broker broker-c
    """
    with administration(nameservers) as admin:
        brokers = [each.broker for each in admin.sinks.describe(name, only)]
        if not yes:
            confirm(name, f"delete it on {', '.join(brokers)}")
        admin.sinks.delete(name, only, force=force)
    rows = [{"sink": name, "broker": broker} for broker in brokers]
    done(f"deleted {name} on {', '.join(brokers)}", rows, output)


def _row(known: SinkDescription) -> dict[str, Any]:
    """Return a sink as one broker knows it."""
    decides = known.broker == known.coordinator
    return {
        "broker": known.broker,
        "coordinator": known.coordinator,
        "query": known.query,
        "run": known.run,
        "decided": known.decided,
        "pending": [each.batch for each in known.pending] if decides else None,
        "awaits": sorted({name for each in known.pending for name in each.brokers}) if decides else None,
        "stages": [f"{each.batch}/{each.run}" for each in known.stages],
        "staged": sum(each.messages for each in known.stages),
        "staged_bytes": sum(each.bytes for each in known.stages),
        "publishing": sum(each.messages for each in known.publishing),
    }
