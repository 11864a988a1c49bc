"""`rocketq dlq list|show|resend`: messages of a group that have had their last attempt."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.messages.query import Moment
from rocketq.cli.terminal.completion import complete_group
from rocketq.cli.terminal.connection import connect, nameservers_option
from rocketq.cli.terminal.output import confirm, output_option, say, show, show_one

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketq.dead_letters import DeadLetter, Resent

LIST_COLUMNS: Final = ("died_at", "letter_id", "topic", "attempts", "resent", "key", "reason")
RESENT_COLUMNS: Final = ("letter_id", "outcome", "topic", "message_id", "why")
#: The exit code of a resend of which some letters failed.
_SOME_FAILED: Final = 1


def _filters(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--topic", help="Only those whose original topic this is."),
            click.option("--tag", help="Only those with this tag."),
            click.option("--key", help="Only those with this key."),
            click.option(
                "--begin",
                "begin",
                type=Moment(),
                help="Only those that died at or after: 2026-11-20T08:00Z, 15m (ago).",
            ),
            click.option("--end", "end", type=Moment(), help="Only those that died at or before."),
        )
    ):
        command = option(command)
    return command


@click.group()
def dlq() -> None:
    """Look at dead letters, and send them again."""


@dlq.command("list")
@click.argument("group", shell_complete=complete_group)
@_filters
@click.option("--resent/--not-resent", default=None, help="Only those that were sent again, or were not.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="Messages at most."
)
@nameservers_option
@output_option
def list_letters(
    group: str, resent: bool | None, count: int, nameservers: str, output: str, **chosen: Any
) -> None:
    """List the dead letters of a group, oldest first on each broker.

    \b
    Examples:
      rocketq dlq list billing
      rocketq dlq list billing --topic orders --begin 1h
      rocketq dlq list billing --not-resent -o jsonl | jq -r .reason | sort | uniq -c
    """
    with connect(nameservers) as client:
        found = client.dead_letters(group).list(resent=resent, page_messages=min(count, 500), **chosen)
        letters = list(itertools.islice(found, count))
        more = next(found, None) is not None
    if output == "table":
        show([_row(letter) for letter in letters], output, LIST_COLUMNS)
    else:
        show([_document(letter) for letter in letters], output)
    say(f"{len(letters)} letter(s)" + ("; there are more: -n" if more else ""))


@dlq.command("show")
@click.argument("group", shell_complete=complete_group)
@click.argument("letter_id")
@nameservers_option
@output_option
def show_letter(group: str, letter_id: str, nameservers: str, output: str) -> None:
    """Show one dead letter, with its body and why it died.

    \b
    Examples:
      rocketq dlq show billing broker-a:%DLQ%billing:0:17
    """
    with connect(nameservers) as client:
        letter = client.dead_letters(group).show(letter_id)
    show_one(_document(letter), output)


@dlq.command("resend")
@click.argument("group", shell_complete=complete_group)
@click.argument("letter_ids", nargs=-1)
@_filters
@click.option("--all", "everything", is_flag=True, help="All letters; those that were sent are left out.")
@click.option("--again", is_flag=True, help="Also those that were sent already.")
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
@click.pass_context
def resend(
    context: click.Context,
    /,
    group: str,
    letter_ids: tuple[str, ...],
    everything: bool,
    again: bool,
    dry_run: bool,
    yes: bool,
    nameservers: str,
    output: str,
    **chosen: Any,
) -> None:
    """Send dead letters to their original topics again. They are shown first, and sent once you agree.

    A letter stays in the dead letter topic and is marked. The exit code is 1 if some could not be sent.

    \b
    Examples:
      rocketq dlq resend billing broker-a:%DLQ%billing:0:17 --yes
      rocketq dlq resend billing --topic orders --dry-run
      rocketq dlq resend billing --all
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    if bool(letter_ids) + bool(given) + everything != 1:
        raise click.UsageError("Give letters by their ids, or a filter such as --topic, or --all.")
    with connect(nameservers) as client:
        letters = client.dead_letters(group)

        def send(only_try: bool) -> Sequence[Resent]:
            return letters.resend(letter_ids or None, again=again, dry_run=only_try, **given)

        found = send(True)
        if not dry_run:
            if not yes:
                _show(found, "table")
                confirm(group, f"send {_sent(found)} of these letters again")
            found = send(False)
    if dry_run or yes or output != "table":
        _show(found, output)
    say(f"{'would send' if dry_run else 'sent'} {_sent(found)} of {len(found)} letter(s)")
    if any(str(each.outcome) not in ("sent", "sent_before") for each in found):
        context.exit(_SOME_FAILED)


def _sent(found: Sequence[Resent]) -> int:
    return sum(str(each.outcome) == "sent" for each in found)


def _show(found: Sequence[Resent], output: str) -> None:
    rows = [
        {
            "letter_id": each.letter_id,
            "outcome": str(each.outcome),
            "topic": each.topic,
            "message_id": each.message_id,
            "why": each.why,
        }
        for each in found
    ]
    show(rows, output, RESENT_COLUMNS)


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "died_at": _time(letter.died_at_us),
        "letter_id": letter.letter_id,
        "topic": letter.topic,
        "attempts": letter.attempts,
        "resent": letter.is_resent,
        "key": None if letter.key is None else letter.key.decode("utf-8", "replace"),
        "reason": letter.reason,
    }


def _document(letter: DeadLetter) -> dict[str, Any]:
    from rocketq.cli.messages.json_lines import text_or_base64

    made: dict[str, Any] = {
        "letter_id": letter.letter_id,
        "topic": letter.topic,
        "message_id": letter.message_id,
        "unique_id": letter.unique_id,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "died_at": _time(letter.died_at_us),
        "died_at_us": letter.died_at_us,
        "resent": letter.is_resent,
        "tag": letter.tag,
        "properties": letter.properties,
        "born_at_us": letter.born_at_us,
    }
    if letter.key is not None:
        made.update(text_or_base64("key", letter.key))
    return made | text_or_base64("body", letter.body)


def _time(at_us: int) -> str:
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
