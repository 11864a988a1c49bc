"""`rocketq group …`: look at consumer groups and the groups of Spark queries, and change them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import rich_click as click

from rocketq.cli.messages.query import Moment
from rocketq.cli.terminal.completion import complete_group
from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import confirm, done, output_option, say, show

if TYPE_CHECKING:
    from rocketq.admin.cluster import ClusterAdmin
    from rocketq.admin.groups import GroupMember, QueueMove
    from rocketq.protocol.documents.groups import GroupSettings, StartRule

LIST_COLUMNS: Final = ("group", "kind", "members", "topics", "brokers", "enabled")
PROGRESS_COLUMNS: Final = ("topic", "broker", "queue", "committed", "max", "lag", "lag_ms", "owner")
MEMBER_COLUMNS: Final = ("client_id", "address", "language", "version", "model", "last_heard_ms", "topics")
PRODUCER_COLUMNS: Final = ("client_id", "address", "language", "version", "last_heard_ms", "brokers")
MOVE_COLUMNS: Final = ("topic", "broker", "queue", "before", "after")


@click.group()
def group() -> None:
    """Look at consumer groups, and change them."""


@group.command("list")
@nameservers_option
@output_option
def list_groups(nameservers: str, output: str) -> None:
    """List all groups; those that a Spark query reports to are of kind `spark`.

    \b
    Examples:
      rocketq group list
      rocketq group list -o jsonl | jq -r 'select(.members == 0) | .group'
    """
    with administration(nameservers) as admin:
        found = admin.groups.overviews()
    rows = [
        {
            "group": each.group,
            "kind": str(each.kind),
            "members": each.members,
            "topics": list(each.topics),
            "brokers": list(each.brokers),
            "enabled": each.settings.enabled,
        }
        for each in found
    ]
    show(rows, output, LIST_COLUMNS)


@group.command("describe")
@click.argument("name", shell_complete=complete_group)
@click.option("--topic", help="Only this topic.")
@nameservers_option
@output_option
def describe(name: str, topic: str | None, nameservers: str, output: str) -> None:
    """Show a group's progress, lag and owner in every queue.

    \b
    Examples:
      rocketq group describe billing
      rocketq group describe billing --topic orders
      rocketq group describe billing -o jsonl | jq -s 'map(.lag) | add'
    """
    from rocketq.admin.groups import members_of, progress_of
    from rocketq.protocol.rules.reserved_names import retry_topic

    with administration(nameservers) as admin:
        known = admin.groups.describe(name)
    found, members = progress_of(known, topic), members_of(known)
    show([asdict(each) for each in found], output, PROGRESS_COLUMNS)
    if output == "table":
        own = [each.lag for each in found if each.topic != retry_topic(name)]
        again = [each.lag for each in found if each.topic == retry_topic(name)]
        letters = sum(each.dead_letters for each in known.values())
        say(
            f"lag {_total(own)}, to be tried again {_total(again)}, dead letters {letters}, "
            f"members {len(members)}"
        )
        say(_settings_text(next(iter(known.values())).settings))
        if len({each.settings for each in known.values()}) > 1:
            say(f"The settings differ between {', '.join(known)}: rocketq group set {name} sets all.")
    _say_differences(members)


@group.command("producers")
@click.argument("name", shell_complete=complete_group)
@nameservers_option
@output_option
def producers(name: str, nameservers: str, output: str) -> None:
    """Show the members of a producer group: producers that named it, and those of its transactions.

    \b
    Examples:
      rocketq group producers shop
      rocketq group producers shop -o jsonl | jq -r .client_id
    """
    with administration(nameservers) as admin:
        found = admin.groups.producers(name)
    rows = [
        {
            "client_id": each.client_id,
            "address": each.member.address,
            "language": each.member.language,
            "version": each.member.version,
            "last_heard_ms": each.member.last_heard_ms,
            "brokers": list(each.brokers),
        }
        for each in found
    ]
    show(rows, output, PRODUCER_COLUMNS)


@group.command("members")
@click.argument("name", shell_complete=complete_group)
@nameservers_option
@output_option
def members(name: str, nameservers: str, output: str) -> None:
    """Show who is a member of a group, what each subscribes to, and which queues it owns.

    \b
    Examples:
      rocketq group members billing
      rocketq group members billing -o json
    """
    with administration(nameservers) as admin:
        found = admin.groups.members(name)
    rows = [_member_row(each) for each in found]
    if output == "table":
        rows = [{**row, "queues": len(row["queues"])} for row in rows]
        for row in rows:
            del row["differences"], row["start"], row["ordered"], row["session_timeout_ms"], row["brokers"]
    show(rows, output, MEMBER_COLUMNS)
    _say_differences(found)


@group.command("set")
@click.argument("name", shell_complete=complete_group)
@click.option(
    "--enabled/--disabled", default=None, help="Whether the group may consume; --disabled stops its members."
)
@click.option("--retries-max", type=int, help="Retries of a message before it is a dead letter.")
@click.option(
    "--model",
    type=click.Choice(["clustering", "broadcasting"]),
    help="clustering: each message to one member; broadcasting: to every member.",
)
@click.option("--ordered/--concurrent", default=None, help="Whether members consume each queue in order.")
@click.option("--start", type=click.Choice(["first", "last"]), help="Where a queue without progress begins.")
@click.option(
    "--start-time", type=Moment(), help="It begins at what was stored at: 2026-11-20T08:00Z, or 15m (ago)."
)
@click.option(
    "--unset", multiple=True, type=click.Choice(["model", "ordered", "start"]),
    help="Forget this setting, so that the group's oldest member decides it; may be repeated.",
)  # fmt: skip
@nameservers_option
@output_option
def set_group(
    name: str,
    enabled: bool | None,
    retries_max: int | None,
    model: str | None,
    ordered: bool | None,
    start: str | None,
    start_time: int | None,
    unset: tuple[str, ...],
    nameservers: str,
    output: str,
) -> None:
    """Create a group on every broker, or change its settings. Disabling it ends its members.

    \b
    Examples:
      rocketq group set billing --retries-max 5
      rocketq group set billing --disabled
      rocketq group set billing --start-time 2026-11-20T08:00Z
      rocketq group set billing --unset start
    """
    from rocketq.model import MessageModel

    with administration(nameservers) as admin:
        made = admin.groups.set(
            name,
            enabled=enabled,
            retries_max=retries_max,
            model=None if model is None else MessageModel(model),
            start=_start_rule(start, start_time),
            ordered=ordered,
            unset=unset,
        )
    show([{"broker": broker, **_settings_row(settings)} for broker, settings in made.items()], output)


@group.command("reset")
@click.argument("name", shell_complete=complete_group)
@click.option("--topic", required=True, help="The topic in which to move the progress.")
@click.option("--to", "end", type=click.Choice(["earliest", "latest"]), help="To one end of each queue.")
@click.option("--offset", type=int, help="To this offset.")
@click.option("--time", "at_us", type=Moment(), help="To what was stored then: 2026-11-20T08:00Z, 15m, µs.")
@click.option("--queue", "queues", multiple=True, metavar="BROKER/QUEUE", help="Only this queue; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--force", is_flag=True, help="Also while members are active: they begin again there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def reset(
    name: str,
    topic: str,
    end: str | None,
    offset: int | None,
    at_us: int | None,
    queues: tuple[str, ...],
    dry_run: bool,
    force: bool,
    yes: bool,
    nameservers: str,
    output: str,
) -> None:
    """Put a group's progress elsewhere. It is shown first, and done once you agree.

    \b
    Examples:
      rocketq group reset billing --topic orders --to earliest --dry-run
      rocketq group reset billing --topic orders --to latest --yes
      rocketq group reset billing --topic orders --time 15m
      rocketq group reset billing --topic orders --offset 17 --queue broker-a/0
    """
    from rocketq.model import MessageQueue
    from rocketq.protocol.documents.groups import ResetTarget

    if sum(each is not None for each in (end, offset, at_us)) != 1:
        raise click.UsageError("Give one of --to, --offset and --time.")
    to = ResetTarget(end) if end else ResetTarget.TIME if offset is None else ResetTarget.OFFSET
    chosen = [MessageQueue(topic, *_queue(each)) for each in queues] or None

    def move(admin: ClusterAdmin, only_try: bool) -> list[QueueMove]:
        return admin.groups.reset(
            name, topic, to, offset=offset, at_us=at_us, queues=chosen, dry_run=only_try, force=force
        )

    _move(name, move, dry_run, yes, nameservers, output)


@group.command("clone")
@click.argument("source")
@click.argument("name", shell_complete=complete_group)
@click.option("--topic", help="Only the progress in this topic.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--force", is_flag=True, help="Also while members are active: they begin again there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def clone(
    source: str,
    name: str,
    topic: str | None,
    dry_run: bool,
    force: bool,
    yes: bool,
    nameservers: str,
    output: str,
) -> None:
    """Give the group NAME the progress of the group SOURCE. It is shown first, and done once you agree.

    \b
    Examples:
      rocketq group clone billing billing-2 --dry-run
      rocketq group clone billing billing-2 --topic orders --yes
    """

    def move(admin: ClusterAdmin, only_try: bool) -> list[QueueMove]:
        return admin.groups.clone(source, name, topic=topic, dry_run=only_try, force=force)

    _move(name, move, dry_run, yes, nameservers, output)


@group.command("delete")
@click.argument("name", shell_complete=complete_group)
@click.option("--force", is_flag=True, help="Also while members are active; they create it again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def delete(name: str, force: bool, yes: bool, nameservers: str, output: str) -> None:
    """Forget a group on every broker, with its progress, its settings and what it would try again.

    Its dead letters stay: rocketq topic delete %DLQ%NAME deletes them.

    \b
    Examples:
      rocketq group delete billing
      rocketq group delete billing --yes
    """
    with administration(nameservers) as admin:
        brokers = list(admin.groups.describe(name))
        if not yes:
            confirm(name, f"delete it on {', '.join(brokers)}")
        admin.groups.delete(name, force=force)
    rows = [{"group": name, "broker": broker} for broker in brokers]
    done(f"deleted {name} on {', '.join(brokers)}", rows, output)


def _move(name: str, move: Any, dry_run: bool, yes: bool, nameservers: str, output: str) -> None:
    """Show what a move would do, have it confirmed, and do it."""
    with administration(nameservers) as admin:
        found = move(admin, True)
        if not dry_run:
            if not yes:
                show([asdict(each) for each in found], "table", MOVE_COLUMNS)
                confirm(name, "move its progress so")
            found = move(admin, False)
    if dry_run or yes or output != "table":
        show([asdict(each) for each in found], output, MOVE_COLUMNS)
    say(f"{'would move' if dry_run else 'moved'} {name}; queues: {len(found)}")


def _queue(text: str) -> tuple[str, int]:
    broker, slash, number = text.rpartition("/")
    if not slash or not number.isdigit():
        raise click.UsageError(f"{text!r} is no queue; write BROKER/QUEUE, as in broker-a/0.")
    return broker, int(number)


def _start_rule(where: str | None, at_us: int | None) -> StartRule | None:
    from rocketq.model import StartFrom
    from rocketq.protocol.documents.groups import StartRule

    if where is not None and at_us is not None:
        raise click.UsageError("Give one of --start and --start-time.")
    if at_us is not None:
        return StartRule(StartFrom.TIME, at_us)
    return None if where is None else StartRule(StartFrom(where))


def _settings_row(settings: GroupSettings) -> dict[str, Any]:
    start = settings.start
    return {
        "enabled": settings.enabled,
        "retries_max": settings.retries_max,
        "model": None if settings.model is None else str(settings.model),
        "ordered": settings.ordered,
        "start": None if start is None else str(start.where),
        "start_at_us": None if start is None else start.at_us,
    }


def _settings_text(settings: GroupSettings) -> str:
    told = {name: value for name, value in _settings_row(settings).items() if value is not None}
    return ", ".join(f"{name} {str(value).lower()}" for name, value in told.items())


def _member_row(each: GroupMember) -> dict[str, Any]:
    member = each.member
    return {
        "client_id": each.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "model": str(member.model),
        "start": str(member.start.where),
        "ordered": member.ordered,
        "session_timeout_ms": member.session_timeout_ms,
        "last_heard_ms": each.last_heard_ms,
        "topics": [f"{s.topic} {s.sql or s.tag or '*'}" for s in member.subscriptions],
        "queues": [str(queue) for queue in each.queues],
        "brokers": list(each.brokers),
        "differences": [msgspec.to_builtins(difference) for difference in each.differences],
    }


def _say_differences(members: list[GroupMember]) -> None:
    for each in members:
        for one in each.differences:
            of_topic = f" of {one.topic}" if one.topic else ""
            whose = f"{one.theirs} says" if one.theirs else "the group's settings say"
            say(f"{one.client_id}: its {one.kind}{of_topic} is {one.value or 'none'}, {whose} {one.counts}")


def _total(lags: list[int | None]) -> str:
    """Return the sum of what is known; `at least` it if something is not."""
    known = sum(lag for lag in lags if lag is not None)
    return f"at least {known}" if None in lags else str(known)
