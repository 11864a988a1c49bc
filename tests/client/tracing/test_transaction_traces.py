"""The way of messages of transactions: half messages, decisions, and checks with their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rocketq import (
    Client,
    HalfMessage,
    LocalCluster,
    TraceNotFound,
    TransactionDecidedOtherwise,
    TransactionState,
)
from rocketq.admin.cluster import ClusterAdmin
from rocketq.aio.client import AsyncClient
from rocketq.tracing.message_trace import MessageTrace
from rocketq.tracing.records import TraceType
from tests.cli.test_commands import Shell
from tests.support.conditions import wait_until

#: A broker that checks transactions soon and often.
QUICK = ("--transaction-timeout-ms", "50", "--transaction-check-interval-ms", "50")


@pytest.fixture
def tracer(cluster: LocalCluster) -> Iterator[Client]:
    """A client that records every message."""
    with Client(cluster.nameservers, trace=True) as client:
        yield client


def unknown(_: HalfMessage) -> TransactionState:
    return TransactionState.UNKNOWN


def found(client: Client, wanted: str, decisions: int = 1, stored: int = 0) -> MessageTrace:
    """Return a trace once it is indexed and has this many decisions and copies."""
    seen: list[MessageTrace] = []

    def is_whole() -> bool:
        assert client.tracing is not None
        client.tracing.flush()
        try:
            trace = client.trace(wanted)
        except TraceNotFound:
            return False
        seen.append(trace)
        return trace.complete and len(trace.decisions) >= decisions and len(trace.stored) >= stored

    wait_until(is_whole)
    return seen[-1]


def test_a_committed_message_shows_its_half_its_decision_and_its_place(tracer: Client, topic: str) -> None:
    with (
        tracer.transactions(f"g-{topic}", unknown) as producer,
        producer.transaction(topic, b"hi", key="o-1", tag="paid") as transaction,
    ):
        pass
    trace = found(tracer, transaction.id, stored=1)
    (half,) = trace.attempts
    assert (half.type, half.transaction, half.outcome) == (TraceType.PUB, transaction.id, "SEND_OK")
    assert (half.group, half.key, half.tag, half.body_bytes) == (f"g-{topic}", "o-1", "paid", 2)
    (decision,) = trace.decisions
    assert (decision.outcome, decision.check, decision.error) == ("COMMIT", None, None)
    assert (decision.group, decision.broker) == (f"g-{topic}", transaction.broker)
    (stored,) = trace.stored
    assert (stored.body, stored.unique_id) == (b"hi", trace.unique_id)
    # Its own id and its place find the same.
    assert found(tracer, str(trace.unique_id), stored=1) == trace
    assert found(tracer, stored.message_id, stored=1) == trace


def test_a_block_that_raises_is_recorded_as_rolled_back(tracer: Client, topic: str) -> None:
    with (
        tracer.transactions(f"g-{topic}", unknown) as producer,
        pytest.raises(ValueError, match="no money"),
        producer.transaction(topic, b"hi") as transaction,
    ):
        raise ValueError("no money")
    trace = found(tracer, transaction.id)
    assert [each.outcome for each in trace.decisions] == ["ROLLBACK"]
    assert (trace.stored, len(trace.attempts)) == ((), 1)


def test_all_messages_of_a_transaction_are_recorded_with_the_first(cluster: LocalCluster, topic: str) -> None:
    with (
        Client(cluster.nameservers, trace=0.000001) as client,
        client.transactions(f"g-{topic}", unknown) as producer,
        producer.transaction(topic, b"1", properties={"TRACE_ON": "true"}) as transaction,
    ):
        transaction.send(topic, b"2", properties={"UNIQ_KEY": f"second-{topic}"})
        transaction.send(topic, b"3", properties={"TRACE_ON": "false", "UNIQ_KEY": f"third-{topic}"})
        transaction.commit()
        second = found(client, f"second-{topic}", stored=1)
        first = found(client, transaction.id, stored=1)
        assert ([each.body for each in first.stored], [each.body for each in second.stored]) == (
            [b"1"],
            [b"2"],
        )
        assert first.decisions == second.decisions
        with pytest.raises(TraceNotFound):
            client.trace(f"third-{topic}")


def test_a_check_is_recorded_with_each_of_its_answers(topic: str) -> None:
    seen: list[int] = []

    def check(message: HalfMessage) -> TransactionState:
        seen.append(message.check)
        return TransactionState.COMMIT if len(seen) > 1 else TransactionState.UNKNOWN

    with (
        LocalCluster(brokers=1, broker_arguments=QUICK) as quick,
        Client(quick.nameservers, trace=True) as client,
        client.transactions(f"g-{topic}", check) as producer,
    ):
        with producer.transaction(topic, b"hi") as transaction:
            transaction.leave_to_check()
        trace = found(client, transaction.id, decisions=3, stored=1)
    answers = sorted((each.check or 0, each.outcome) for each in trace.decisions)
    assert answers == [(0, "UNKNOWN"), (1, "UNKNOWN"), (2, "COMMIT")]


def test_transactions_of_asyncio_are_recorded_alike(
    tracer: Client, cluster: LocalCluster, topic: str
) -> None:
    async def work() -> str:
        async with (
            AsyncClient(cluster.nameservers, trace=True) as client,
            client.transactions(f"g-{topic}", unknown) as producer,
            producer.transaction(topic, b"1") as transaction,
        ):
            await transaction.send(topic, b"2")
            await transaction.rollback()
        return transaction.id

    trace = found(tracer, asyncio.run(work()))
    assert [each.outcome for each in trace.decisions] == ["ROLLBACK"]
    assert ([each.outcome for each in trace.attempts], trace.stored) == (["SEND_OK"], ())


def test_a_decision_that_the_broker_refuses_is_recorded_with_the_error(
    tracer: Client, cluster: LocalCluster, topic: str
) -> None:
    with (
        ClusterAdmin(cluster.nameservers) as admin,
        tracer.transactions(f"g-{topic}", unknown) as producer,
        pytest.raises(TransactionDecidedOtherwise),
        producer.transaction(topic, b"hi") as transaction,
    ):
        admin.transactions.decide(transaction.id, TransactionState.ROLLBACK)
    trace = found(tracer, transaction.id)
    (decision,) = trace.decisions
    assert (decision.outcome, bool(decision.error)) == ("COMMIT", True)


def test_a_client_without_a_trace_marks_no_message_of_a_transaction(
    cluster: LocalCluster, topic: str
) -> None:
    with Client(cluster.nameservers) as client:
        with client.transactions(f"g-{topic}", unknown) as producer, producer.transaction(topic, b"hi"):
            pass
        with client.pull_consumer(topic, start="earliest") as consumer:
            (message,) = consumer.poll(timeout_ms=60_000)
    assert not message.properties


def test_the_command_line_shows_what_became_of_a_transaction(
    tracer: Client, cluster: LocalCluster, topic: str
) -> None:
    with tracer.transactions(f"g-{topic}", unknown) as producer, producer.transaction(topic, b"hi") as one:
        pass
    found(tracer, one.id, stored=1)
    shell = Shell(cluster.nameservers)
    events = shell("trace", one.id, "-o", "jsonl").lines
    assert sorted(each["event"] for each in events) == ["decided", "sent", "stored"]
    (decision,) = shell("trace", one.id, "-o", "json").json["decisions"]
    assert (decision["outcome"], decision["transaction"], decision["check"]) == ("COMMIT", one.id, None)
