"""`rocketq tx list|show|commit|rollback`: undecided transactions, as all brokers together know them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import output_option, say, show, show_one

if TYPE_CHECKING:
    from rocketq.model import TransactionState
    from rocketq.protocol.documents.transactions import HalfDocument, TransactionDescription

LIST_COLUMNS: Final = (
    "transaction", "broker", "group", "topics", "messages", "bytes", "begun_at", "checks", "next_check_at",
    "parked_at", "is_damaged",
)  # fmt: skip


@click.group()
def tx() -> None:
    """Look at transactions that are undecided, and decide them."""


@tx.command("list")
@click.option("--group", help="Only those of this producer group.")
@click.option("--parked", is_flag=True, help="Only those that wait for an operator.")
@nameservers_option
@output_option
def list_transactions(group: str | None, parked: bool, nameservers: str, output: str) -> None:
    """List undecided transactions: when they began, their checks, and whether they are left to an operator.

    \b
    Examples:
      rocketq tx list
      rocketq tx list --parked
      rocketq tx list --group orders-tx -o jsonl
    """
    with administration(nameservers) as admin:
        found = list(admin.transactions.undecided(group=group, parked_only=parked))
    show([_row(each) for each in found], output, LIST_COLUMNS)


@tx.command("show")
@click.argument("transaction")
@nameservers_option
@output_option
def show_transaction(transaction: str, nameservers: str, output: str) -> None:
    """Show an undecided transaction with its messages.

    \b
    Examples:
      rocketq tx show 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f
      rocketq tx show 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f -o json
      rocketq tx show 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f -o json | jq '.half_messages[].body'
    """
    with administration(nameservers) as admin:
        found = admin.transactions.find(transaction)
    messages = [_message_row(each) for each in found.messages]
    if output == "table":
        show_one(_row(found.description), output)
        show(messages, output)
    else:
        show_one({**_row(found.description), "half_messages": messages}, output)


@tx.command("commit")
@click.argument("transaction")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def commit(transaction: str, yes: bool, nameservers: str, output: str) -> None:
    """Commit an undecided transaction: consumers see its messages.

    \b
    Examples:
      rocketq tx commit 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f
      rocketq tx commit 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f --yes
      rocketq tx commit 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f --yes -o json
    """
    from rocketq.model import TransactionState

    _decide(transaction, TransactionState.COMMIT, yes, nameservers, output)


@tx.command("rollback")
@click.argument("transaction")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def rollback(transaction: str, yes: bool, nameservers: str, output: str) -> None:
    """Roll back an undecided transaction: nobody ever sees its messages.

    \b
    Examples:
      rocketq tx rollback 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f
      rocketq tx rollback 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f --yes
      rocketq tx rollback 5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f --yes -o json
    """
    from rocketq.model import TransactionState

    _decide(transaction, TransactionState.ROLLBACK, yes, nameservers, output)


def _decide(transaction: str, state: TransactionState, yes: bool, nameservers: str, output: str) -> None:
    with administration(nameservers) as admin:
        if not yes:
            found = admin.transactions.find(transaction).description
            say(
                f"Transaction {transaction} of group {found.group} has {found.messages} message(s) for "
                f"{', '.join(sorted(found.topics)) or 'no topic that exists'}."
            )
            if click.prompt("Type the transaction's id to decide it", err=True) != transaction:
                raise click.Abort
        answer = admin.transactions.decide(transaction, state)
    show_one({"transaction": transaction, "broker": answer.broker, "state": answer.state.value}, output)


def _row(each: TransactionDescription) -> dict[str, Any]:
    return {
        "transaction": each.transaction,
        "broker": each.broker,
        "group": each.group,
        "topics": sorted(each.topics),
        "messages": each.messages,
        "bytes": each.bytes,
        "begun_at": _time(each.begun_at_ms),
        "checks": each.checks,
        "next_check_at": _time(each.next_check_at_ms),
        "parked_at": _time(each.parked_at_ms),
        "is_damaged": each.is_damaged,
    }


def _message_row(each: HalfDocument) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "queue": each.queue,
        "key": each.key if each.key_base64 is None else f"base64:{each.key_base64}",
        "tag": each.tag,
        "properties": each.properties,
        "body": each.body if each.body_base64 is None else f"base64:{each.body_base64}",
    }


def _time(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
