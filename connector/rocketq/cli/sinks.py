"""`rocketq sink list|describe|reset|delete`: the exactly-once sinks, as all brokers together know them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.connection import Administration, nameservers_option
from rocketq.cli.output import output_option, say, show

if TYPE_CHECKING:
    from rocketq.net.sink_api import SinkApi
    from rocketq.protocol.sink_documents import SinkDescription

LIST_COLUMNS: Final = ("sink", "coordinator", "query", "run", "decided", "pending", "staged", "staged_bytes")


@contextmanager
def administration(nameservers: str) -> Iterator[Administration[SinkApi]]:
    """Open the connections that these commands need, and close them after it."""
    from rocketq.net.route_cache import RouteCache
    from rocketq.net.sink_api import SinkApi
    from rocketq.net.transport import Transport

    with Transport() as transport:
        yield Administration(
            RouteCache(nameservers, transport), lambda name, address: SinkApi(transport, name, address)
        )


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
        found = [each for master in admin.masters() for each in master.sinks().sinks]
    names = sorted({each.sink for each in found})
    show([_listed([each for each in found if each.sink == name]) for name in names], output, LIST_COLUMNS)


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
        found = [description for _, description in _known(admin, name)]
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
def reset(name: str, yes: bool, nameservers: str) -> None:
    """Forget which batches were decided, so that a query with a new checkpoint can write.

    What is written stays. Without a reset such a query is refused, since it numbers its
    batches from 0 again.

    \b
    Examples:
      rocketq sink reset orders-copy
      rocketq sink reset orders-copy --yes
    """
    with administration(nameservers) as admin:
        coordinator = _coordinator(admin, name)
        if not yes:
            _confirm(name, "forget what it has decided")
        coordinator.reset_sink(name)
    say(f"reset {name} on {coordinator.broker}")


@sink.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Give up what is decided and not published everywhere.")
@click.option("--broker", "only", multiple=True, help="Only on this broker; may be given several times.")
@nameservers_option
def delete(name: str, yes: bool, force: bool, only: tuple[str, ...], nameservers: str) -> None:
    """Forget a sink on every broker, with what is staged and undecided. What is written stays.

    \b
    Examples:
      rocketq sink delete orders-copy
      rocketq sink delete orders-copy --yes --force
      rocketq sink delete orders-copy --broker broker-c
    """
    with administration(nameservers) as admin:
        known = _known(admin, name)
        if only:
            known = _those_of(known, only)
        if not yes:
            _confirm(name, f"delete it on {', '.join(master.broker for master, _ in known)}")
        # The coordinator first: if it refuses, because a decision is pending, nothing has happened.
        for master, _ in sorted(known, key=lambda each: each[0].broker != each[1].coordinator):
            master.delete_sink(name, force=force)
    say(f"deleted {name} on {', '.join(master.broker for master, _ in known)}")


def _known(admin: Administration[SinkApi], name: str) -> list[tuple[SinkApi, SinkDescription]]:
    """Return every broker that knows a sink, with what it knows; raise SinkNotFound if none does."""
    from rocketq.errors.sink_errors import SinkNotFound

    found = []
    unknown = SinkNotFound(name, "of this cluster")
    for master in admin.masters():
        try:
            found.append((master, master.sink(name)))
        except SinkNotFound as error:
            unknown = error
    if not found:
        raise unknown
    return found


def _those_of(
    known: list[tuple[SinkApi, SinkDescription]], brokers: tuple[str, ...]
) -> list[tuple[SinkApi, SinkDescription]]:
    """Return those of the named brokers; raise BadParameter if one of them does not know the sink."""
    names = [master.broker for master, _ in known]
    strangers = [broker for broker in brokers if broker not in names]
    if strangers:
        raise click.BadParameter(
            f"{', '.join(strangers)} is not alive, or does not know the sink: {', '.join(names)} know it.",
            param_hint="--broker",
        )
    return [each for each in known if each[0].broker in brokers]


def _coordinator(admin: Administration[SinkApi], name: str) -> SinkApi:
    """Return the broker that decides about a sink; raise BrokerUnreachable or CoordinatorConflict."""
    from rocketq.errors import BrokerUnreachable
    from rocketq.errors.sink_errors import CoordinatorConflict

    known = _known(admin, name)
    claims = {master.broker: description.coordinator for master, description in known}
    if len(set(claims.values())) > 1:
        raise CoordinatorConflict(name, claims)
    for master, description in known:
        if description.coordinator == master.broker:
            return master
    coordinator = known[0][1].coordinator
    raise BrokerUnreachable(
        coordinator, "no known address", "it coordinates the sink and is not alive", sent=False
    )


def _confirm(name: str, what: str) -> None:
    if click.prompt(f"Type {name} to {what}", err=True) != name:
        raise click.Abort


def _listed(known: list[SinkDescription]) -> dict[str, Any]:
    """Return a sink as one row, of what all brokers know of it."""
    decides = next((each for each in known if each.broker == each.coordinator), None)
    stages = [stage for each in known for stage in each.stages]
    return {
        "sink": known[0].sink,
        "coordinator": known[0].coordinator,
        "query": None if decides is None else decides.query,
        "run": None if decides is None else decides.run,
        "decided": None if decides is None else decides.decided,
        "pending": None if decides is None else len(decides.pending),
        "staged": sum(stage.messages for stage in stages),
        "staged_bytes": sum(stage.bytes for stage in stages),
    }


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
