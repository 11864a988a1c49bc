"""The routes of transactional messages: outcomes and checks for producers, and a look for operators.

Half messages are sent as all messages are (`data_plane.sends.send_half`). The log writer decides what a call
changes (`store.transactions.decisions`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from rocketq.errors import InvalidRequest
from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.model import TransactionState
from rocketq.protocol.documents.broker import WAIT_MS_MAX
from rocketq.protocol.documents.transactions import (
    ChecksAnswer,
    DecideAnswer,
    DecideRequest,
    TransactionDescription,
    TransactionDocument,
    TransactionListing,
)
from rocketq.protocol.rules.reserved_names import check_name, check_user_group
from rocketq_broker.broker import Broker
from rocketq_broker.control_plane.topic_endpoints import json_body
from rocketq_broker.control_plane.transaction_documents import check_documents, described, half_documents
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX
from rocketq_broker.store.store import Outcome

#: Checks of one answer, and transactions of one page.
CHECKS_MAX: Final = 64
PAGE_MAX: Final = 1_000


def install_transactions(app: FastAPI, broker: Broker) -> None:
    """Add the routes that producers and operators call to `app`."""
    _install_outcomes(app, broker)
    _install_questions(app, broker)


def _install_outcomes(app: FastAPI, broker: Broker) -> None:
    """Add the decisions: those of producers, and that of an operator."""

    @app.post("/v1/groups/{group}/transactions/{transaction}/commit")
    @gives(DecideAnswer)
    @declare(Permission.PRODUCE, Resource.GROUP)
    async def commit_transaction(group: str, transaction: str) -> Response:
        """Put the messages of a transaction into their queues; answered when they are there."""
        return await _decide(broker, group, transaction, TransactionState.COMMIT)

    @app.post("/v1/groups/{group}/transactions/{transaction}/rollback")
    @gives(DecideAnswer)
    @declare(Permission.PRODUCE, Resource.GROUP)
    async def roll_back_transaction(group: str, transaction: str) -> Response:
        """Drop the messages of a transaction."""
        return await _decide(broker, group, transaction, TransactionState.ROLLBACK)

    @app.put("/v1/groups/{group}/transactions/{transaction}/outcome")
    @gives(DecideAnswer)
    @takes(DecideRequest)
    @declare(Permission.ADMIN, Resource.GROUP)
    async def decide_transaction(group: str, transaction: str, request: Request) -> Response:
        """Commit or roll back as an operator, in the producers' place; the audit log has a line of it."""
        wanted = await json_body(request, DecideRequest)
        if wanted.state is TransactionState.UNKNOWN:
            raise InvalidRequest(
                "field state", "is UNKNOWN, which decides nothing", "Say COMMIT or ROLLBACK."
            )
        return await _decide(broker, group, transaction, wanted.state)


def _install_questions(app: FastAPI, broker: Broker) -> None:
    """Add checks, which ask producers, and what operators ask about."""
    transactions = broker.store.transactions

    @app.post("/v1/groups/{group}/transactions/checks")
    @gives(ChecksAnswer)
    @declare(Permission.PRODUCE, Resource.GROUP)
    async def take_checks(
        request: Request,
        group: str,
        wait_ms: Annotated[int, Query(ge=0, le=WAIT_MS_MAX)] = 0,
        limit: Annotated[int, Query(ge=1, le=CHECKS_MAX)] = CHECKS_MAX,
    ) -> Response:
        """Take checks of a group that are due; the call is held while there are none. Each counts as made."""
        check_user_group(group)
        handed = await broker.check_watch.take(group, limit, wait_ms, request.receive)
        loop = asyncio.get_running_loop()
        checks = await loop.run_in_executor(broker.readers, check_documents, transactions, handed)
        return json_response(ChecksAnswer(broker.config.name, group, checks))

    @app.get("/v1/transactions")
    @gives(TransactionListing)
    @declare(Permission.METRICS, Resource.CLUSTER, Permission.ADMIN)
    async def list_transactions(
        group: str | None = None,
        page: Annotated[int, Query(ge=0, le=NUMBER_MAX)] = 0,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_MAX,
    ) -> Response:
        """The undecided transactions of this broker, the oldest first."""
        table = transactions.table
        numbers = (number for number in sorted(table.open) if number >= page)
        every = (table.open[number] for number in numbers)
        found = list(islice((each for each in every if group in (None, each.group)), limit + 1))
        next_page = found[limit].number if len(found) > limit else None
        told = tuple(_described(broker, each.id) for each in found[:limit])
        return json_response(TransactionListing(broker.config.name, told, next_page))

    @app.get("/v1/transactions/{transaction}")
    @gives(TransactionDocument)
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def show_transaction(transaction: str) -> Response:
        """One undecided transaction with its messages."""
        found = transactions.find(transaction)
        loop = asyncio.get_running_loop()
        messages = await loop.run_in_executor(broker.readers, half_documents, transactions, found)
        return json_response(TransactionDocument(_described(broker, transaction), messages))


async def _decide(broker: Broker, group: str, transaction: str, state: TransactionState) -> Response:
    check_name("group", group)
    check_name("transaction", transaction)
    decide = partial(broker.store.transactions.decide, transaction, group, state)
    outcome: Outcome = await broker.completions.outcome(decide)
    broker.measurements.decided(outcome)
    return json_response(DecideAnswer(transaction, broker.config.name, state))


def _described(broker: Broker, transaction: str) -> TransactionDescription:
    transactions = broker.store.transactions
    return described(transactions, transactions.find(transaction), broker.config.name)
