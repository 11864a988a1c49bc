"""Undecided transactions: the list, one with its half messages, and deciding it."""

from __future__ import annotations

from typing import Final

from rocketq.console.console import Call, Console, Page
from rocketq.errors import InvalidConfiguration
from rocketq.model import TransactionState

LISTED: Final = 200


def transactions(console: Console, call: Call) -> Page:
    """Answer the oldest undecided transactions, of one producer group if it is named."""
    group = call.text("group") or None
    answers = console.survey.ask(lambda master: console.admin.transactions.page(master, group=group))
    rows = sorted(
        (each for listing in answers.found.values() for each in listing.transactions),
        key=lambda each: (each.parked_at_ms is None, each.begun_at_ms, each.transaction),
    )
    values: dict[str, object] = {
        "rows": rows[:LISTED],
        "more": len(rows) > LISTED or any(each.next_page is not None for each in answers.found.values()),
        "group": group or "", "answers": answers, "size": LISTED,
    }  # fmt: skip
    return Page("transactions.html", "Transactions", values, same=("rocketq tx list",))


def transaction(console: Console, call: Call) -> Page:
    """Answer one undecided transaction with its half messages."""
    name = call.names["transaction"]
    values: dict[str, object] = {
        "transaction": name,
        "found": console.admin.transactions.find(name),
        "state": "",
    }
    return Page("transaction.html", "Transaction", values, same=(f"rocketq tx show {name}",), refreshes=False)


def decide(console: Console, call: Call) -> Page:
    """Commit or roll a transaction back."""
    name, state = call.names["transaction"], call.text("state")
    if state not in (TransactionState.COMMIT, TransactionState.ROLLBACK):
        raise InvalidConfiguration("state", state[:40], "it is neither COMMIT nor ROLLBACK")
    answer = console.admin.transactions.decide(name, TransactionState(state))
    values: dict[str, object] = {"transaction": name, "found": None, "state": str(answer.state)}
    same = (f"rocketq tx {'commit' if state == 'COMMIT' else 'rollback'} {name}",)
    return Page("transaction.html", "Transaction", values, same=same, refreshes=False)
