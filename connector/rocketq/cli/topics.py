"""`rocketq topic create|list|describe|route|alter|delete`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.completion import complete_topic
from rocketq.cli.terminal.connection import administration, connect, described, nameservers_option
from rocketq.cli.terminal.output import confirm, done, output_option, say, show
from rocketq.errors import RouteNotFound

if TYPE_CHECKING:
    from rocketq.client import Client
    from rocketq.model import TopicConfig
    from rocketq.protocol.documents.broker import TopicDescription
    from rocketq.protocol.documents.nameserver import TopicRoute
    from rocketq.settings_types import TopicChanges

PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
ROUTE_COLUMNS: Final = ("broker", "master", "slaves", "read_queues", "write_queues", "perm", "state")
LIST_COLUMNS: Final = ("topic", "broker", "read_queues", "write_queues", "perm")

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Duration(click.ParamType[int]):
    """`90s`, `15m`, `12h`, `7d` as milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        matched = re.fullmatch(r"(\d+)([smhd])", str(value))
        if matched is None:
            self.fail(f"{value!r} is no duration; write 90s, 15m, 12h or 7d", param, ctx)
        return int(matched[1]) * _UNITS_MS[matched[2]]


class Size(click.ParamType[int]):
    """`500`, `64k`, `10m`, `2g` as bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        matched = re.fullmatch(r"(\d+)([kmgt]?)", str(value).lower())
        if matched is None:
            self.fail(f"{value!r} is no size; write 500, 64k, 10m or 2g", param, ctx)
        return int(matched[1]) * _UNITS_BYTES[matched[2]]


@click.group()
def topic() -> None:
    """Create, look at, change and delete topics."""


def _settings(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--retention-bytes", type=Size(), help="Keep at most this much for each queue: 10g."),
        click.option(
            "--retention",
            type=Duration(),
            help="Remove messages after this long, if that is sooner than the broker does: 1d.",
        ),
        click.option("--message-bytes-max", type=Size(), help="The largest body: 4m."),
        click.option("--perm", type=click.Choice(list(PERMISSIONS)), help="What clients may do."),
    ):
        command = option(command)
    return command


@topic.command("create")
@click.argument("name")
@click.option("--queues", default=4, show_default=True, help="Queues on each broker.")
@click.option("--broker", "brokers", multiple=True, help="Only on this broker; may be repeated.")
@click.option("--cluster", help="Only on the brokers of this cluster.")
@click.option(
    "--if-absent", is_flag=True, help="An existing topic is a success; brokers that lack it get it."
)
@_settings
@nameservers_option
@output_option
def create(
    name: str,
    queues: int,
    brokers: tuple[str, ...],
    cluster: str | None,
    if_absent: bool,
    perm: str | None,
    message_bytes_max: int | None,
    retention: int | None,
    retention_bytes: int | None,
    nameservers: str,
    output: str,
) -> None:
    """Create a topic, on every master broker unless you choose, and wait until it can be used.

    \b
    Examples:
      rocketq topic create orders
      rocketq topic create orders --queues 8 --retention 1d
      rocketq topic create orders --broker broker-a --broker broker-b
      rocketq topic create orders --if-absent -o json
    """
    with connect(nameservers) as client:
        made = client.create_topic(
            name,
            queues,
            if_absent=if_absent,
            perm=PERMISSIONS[perm or "rw"],
            message_bytes_max=message_bytes_max,
            retention_ms=retention,
            retention_bytes=retention_bytes,
            brokers=brokers or None,
            cluster=cluster,
        )
    show(_rows(made), output)


@topic.command("list")
@nameservers_option
@output_option
def list_topics(nameservers: str, output: str) -> None:
    """List the topics of every broker.

    \b
    Examples:
      rocketq topic list
      rocketq topic list -o jsonl
      rocketq topic list | awk 'NR > 1 {print $1}' | sort -u
    """
    with administration(nameservers) as admin:
        rows = [_row(broker, one) for broker, topics in admin.topics.configs().items() for one in topics]
    show(sorted(rows, key=lambda row: (row["topic"], row["broker"])), output, LIST_COLUMNS)


@topic.command("describe")
@click.argument("name", shell_complete=complete_topic)
@nameservers_option
@output_option
def describe(name: str, nameservers: str, output: str) -> None:
    """Show the queues of a topic: where they are and which offsets they hold.

    \b
    Examples:
      rocketq topic describe orders
      rocketq topic describe orders -o json
      rocketq topic describe orders -o jsonl | jq -s 'map(.messages) | add'
    """
    with connect(nameservers) as client:
        found = described(client, name)
    rows: list[dict[str, Any]] = [
        {
            "broker": broker,
            "queue": number,
            "min": queue.min,
            "max": queue.max,
            "messages": queue.max - queue.min,
            "state": "" if number < description.config.read_queues else "not read",
        }
        for broker, description in sorted(found.items())
        for number, queue in enumerate(description.queues)
    ]
    record = sorted({broker for one in found.values() for broker in one.config.brokers})
    absent = [
        {"broker": broker, "queue": None, "min": None, "max": None, "messages": None, "state": "not found"}
        for broker in record
        if broker not in found
    ]
    show([*rows, *absent], output)
    if output == "table":
        say(f"messages: {sum(row['messages'] for row in rows)}, queues: {len(rows)}")
        say(f"brokers on record: {', '.join(record) or 'unknown (rocketq topic create NAME --if-absent)'}")
        if absent:
            say("not found: away, or without the topic; see rocketq cluster")


@topic.command("route")
@click.argument("name", shell_complete=complete_topic)
@nameservers_option
@output_option
def route(name: str, nameservers: str, output: str) -> None:
    """Show what a NameServer tells clients of a topic: its brokers, their replicas, queues and permissions.

    \b
    Examples:
      rocketq topic route orders
      rocketq topic route orders -o json
    """
    with connect(nameservers) as client:
        found = client.route(name)
    show([_served(found, broker) for broker in _brokers_of(found)], output, ROUTE_COLUMNS)
    if output == "table":
        say(f"as {found.server or 'a NameServer'} tells it")


def _brokers_of(found: TopicRoute) -> list[str]:
    return sorted({one.broker for one in found.queues} | set(found.holders))


def _served(found: TopicRoute, broker: str) -> dict[str, Any]:
    """Return what a broker group serves of a topic; one on record that is not there has no numbers."""
    queues, replicas = found.queue_data(broker), found.broker(broker)
    master = None if replicas is None else replicas.master
    others = [] if replicas is None else [each for each in replicas.addresses.values() if each != master]
    state = "away" if queues is None else "no master" if master is None else ""
    return {
        "broker": broker,
        "master": master,
        "slaves": sorted(others),
        "read_queues": None if queues is None else queues.read_queues,
        "write_queues": None if queues is None else queues.write_queues,
        "perm": None if queues is None else _permission(queues.perm),
        "state": state,
    }


@topic.command("alter")
@click.argument("name", shell_complete=complete_topic)
@click.option("--queues", type=int, help="Queues on each broker, for reading and writing.")
@click.option("--read-queues", type=int, help="Queues that are read; for shrinking, reduce these last.")
@click.option("--write-queues", type=int, help="Queues that are written; for shrinking, reduce these first.")
@click.option("--remove-broker", help="Take a broker that is gone for good off the topic.")
@click.option("--force", is_flag=True, help="Also if messages can no longer be read afterwards.")
@_settings
@nameservers_option
@output_option
def alter(
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    remove_broker: str | None,
    force: bool,
    perm: str | None,
    message_bytes_max: int | None,
    retention: int | None,
    retention_bytes: int | None,
    nameservers: str,
    output: str,
) -> None:
    """Change the settings that you give, on every broker of the topic.

    \b
    Examples:
      rocketq topic alter orders --queues 16
      rocketq topic alter orders --perm r
      rocketq topic alter orders --retention 12h --retention-bytes 50g
      rocketq topic alter orders --remove-broker broker-b
    """
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise click.UsageError("Give --queues, or --read-queues and --write-queues.")
    changes: TopicChanges = {
        "read_queues": queues if read_queues is None else read_queues,
        "write_queues": queues if write_queues is None else write_queues,
        "perm": None if perm is None else PERMISSIONS[perm],
        "message_bytes_max": message_bytes_max,
        "retention_ms": retention,
        "retention_bytes": retention_bytes,
    }
    given = any(value is not None for value in changes.values())
    if given == (remove_broker is not None):
        raise click.UsageError(
            "Say what to change: --queues, --perm, --retention, …; or only --remove-broker."
        )
    with connect(nameservers) as client:
        _existing(client, name)
        if remove_broker is not None:
            altered = client.remove_topic_broker(name, remove_broker, force=force)
        else:
            changes["force"] = force
            altered = client.alter_topic(name, **changes)
    show(_rows(altered), output)


@topic.command("delete")
@click.argument("name", shell_complete=complete_topic)
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def delete(name: str, yes: bool, nameservers: str, output: str) -> None:
    """Delete a topic on every broker; its messages cannot be read any more.

    \b
    Examples:
      rocketq topic delete orders
      rocketq topic delete orders --yes
    """
    with connect(nameservers) as client:
        brokers = sorted(_existing(client, name))
        if not yes:
            confirm(name, f"delete it on {', '.join(brokers)}")
        client.delete_topic(name)
    rows = [{"topic": name, "broker": broker} for broker in brokers]
    done(f"deleted {name} on {', '.join(brokers)}", rows, output)


def _existing(client: Client, name: str) -> dict[str, TopicDescription]:
    """Return a topic that is to be changed. The error of one that is absent does not say: create it."""
    try:
        return described(client, name)
    except RouteNotFound as error:
        error.hint = "rocketq topic list shows the topics that there are."
        raise


def _rows(configs: dict[str, TopicConfig]) -> list[dict[str, Any]]:
    return [_row(broker, config) for broker, config in sorted(configs.items())]


def _permission(bits: int) -> str:
    return next((name for name, each in PERMISSIONS.items() if each == bits), str(bits))


def _row(broker: str, config: TopicConfig) -> dict[str, Any]:
    return {
        "topic": config.name,
        "broker": broker,
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "perm": _permission(config.perm),
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
        "message_bytes_max": config.message_bytes_max,
        "brokers": list(config.brokers),
    }
