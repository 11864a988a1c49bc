"""A producer process that dies at a step of its transaction.

    python -m tests.support.order_victim NAMESERVERS DATABASE ORDER STEP

It runs the program of docs/transactions.md. At STEP it sends itself SIGKILL; without one it ends by itself.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from rocketq import TransactionState
from rocketq.net.transaction_api import TransactionApi
from rocketq.protocol.documents.transactions import DecideAnswer
from tests.support.patience import PatientClient

PAGE: Final = Path(__file__).parents[2] / "docs" / "transactions.md"
GROUP: Final = "orders-tx"
#: Every step, in the order in which the program reaches them.
STEPS: Final = (
    "begun",
    "half message stored",
    "outcome inserted",
    "database about to commit",
    "database committed",
    "commit answered",
    "block ended",
)


def program() -> dict[str, Any]:
    """The functions of the page."""
    block = re.search(r"```python\n(import sqlite3\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(compile(block[1], str(PAGE), "exec"), names)
    return names


def main(nameservers: str, path: str, order: str, fatal_step: str) -> None:
    names = program()

    def reached(step: str) -> None:
        if step == fatal_step:
            os.kill(os.getpid(), signal.SIGKILL)

    class Database(sqlite3.Connection):
        """Tells of the statements of a local transaction, and of its commit."""

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> Any:
            given = super().__exit__(kind, error, trace)
            reached("database committed")
            return given

    class Api(TransactionApi):
        """Tells when a commit was answered, before anybody learns of it."""

        def decide(
            self, group: str, transaction: str, state: TransactionState, *, timeout_ms: int | None = None
        ) -> DecideAnswer:
            answer = super().decide(group, transaction, state, timeout_ms=timeout_ms)
            reached("commit answered")
            return answer

    def statement(text: str) -> None:
        for beginning, step in (
            ("INSERT INTO outcomes", "half message stored"),
            ("INSERT INTO orders", "outcome inserted"),
            ("COMMIT", "database about to commit"),
        ):
            if text.startswith(beginning):
                reached(step)

    TransactionApi.of = staticmethod(  # type: ignore[method-assign]
        lambda broker, transport: Api(transport, broker.broker, broker.address)
    )
    database = sqlite3.connect(path, timeout=60, factory=Database)
    database.set_trace_callback(statement)
    check = partial(names["check_with"], path)
    with PatientClient(nameservers) as mq, mq.transactions(GROUP, check=check) as tp:
        reached("begun")
        names["place_order"](tp, database, order, 42)
        reached("block ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
