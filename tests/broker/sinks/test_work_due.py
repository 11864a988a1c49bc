"""What is due for a broker's sinks, as a function of the table and the time."""

from __future__ import annotations

from rocketq.protocol.documents.sinks import Participant
from rocketq_broker.sinks.work_due import CheckDue, DropDue, publications_due, stages_due
from rocketq_broker.store.machines.machine import HeldFrame
from rocketq_broker.store.sinks.changes import (
    BatchDecided,
    BatchPublished,
    BatchSettled,
    SinkChange,
    SinkRegistered,
    StageOpened,
)
from rocketq_broker.store.sinks.table import SinkTable
from tests.support.topics import topics


def table_of(*changes: SinkChange) -> SinkTable:
    table = SinkTable()
    for change in changes:
        table = table.apply(change, topics(0))
    return table


def decided(sink: str, batch: int, *brokers: str) -> BatchDecided:
    return BatchDecided(sink, batch, "r", "", tuple(Participant(each, (8 * batch,), 1) for each in brokers))


def due(
    table: SinkTable, *under_way: tuple[str, str], now_ms: int = 0, **waits: int
) -> list[tuple[str, int, str]]:
    waiting = {("etl", broker): until for broker, until in waits.items()}
    found = publications_due(table, "a", under_way, waiting, now_ms)
    return [(each.sink, each.batch, each.broker) for each in found]


def test_each_participant_gets_the_batches_of_a_sink_one_after_the_other() -> None:
    table = table_of(
        SinkRegistered("etl", "a"), SinkRegistered("other", "a"), SinkRegistered("foreign", "z"),
        decided("etl", 1, "b", "c"), decided("etl", 2, "b", "d"), decided("other", 1, "b"),
    )  # fmt: skip
    assert due(table) == [("etl", 1, "b"), ("etl", 1, "c"), ("etl", 2, "d"), ("other", 1, "b")]
    assert due(table, ("etl", "b"), ("etl", "d")) == [("etl", 1, "c"), ("other", 1, "b")]
    settled = table.apply(BatchSettled("etl", 1, "b"), topics())
    assert due(settled) == [("etl", 1, "c"), ("etl", 2, "b"), ("etl", 2, "d"), ("other", 1, "b")]


def test_a_participant_that_failed_is_told_again_when_its_wait_is_over() -> None:
    table = table_of(SinkRegistered("etl", "a"), decided("etl", 1, "b", "c"))
    assert due(table, b=100, now_ms=99) == [("etl", 1, "c")]
    assert due(table, b=100, now_ms=100) == [("etl", 1, "b"), ("etl", 1, "c")]


def test_a_stage_is_checked_when_it_was_quiet_for_a_while() -> None:
    table = table_of(StageOpened(0, "etl", 5, "r", "b", 1_000)).held(0, HeldFrame(8, 64, 1, 0, 0), 2_000)

    def found(now_ms: int, asked_ms: int = 0) -> list[CheckDue | DropDue]:
        return list(stages_due(table, {0: asked_ms}, now_ms, 30_000, 3_600_000))

    assert found(31_999) == []
    assert found(32_000) == [CheckDue(table.stages[0], "b", abandon=False)]
    assert found(61_999, asked_ms=32_000) == []
    assert found(62_000, asked_ms=32_000) == [CheckDue(table.stages[0], "b", abandon=False)]
    assert found(3_601_000) == [CheckDue(table.stages[0], "b", abandon=True)]


def test_a_stage_begun_after_its_batch_was_published_is_dropped() -> None:
    frame = HeldFrame(8, 64, 1, 0, 0)
    table = table_of(StageOpened(0, "etl", 5, "r", "b", 0)).held(0, frame, 0)
    table = table.apply(BatchPublished(0, "etl", 5, "r", (8,)), topics(0)).copied()
    table = table.apply(StageOpened(1, "etl", 5, "r", "b", 0), topics(0))
    assert list(stages_due(table, {}, 30_000, 30_000, 3_600_000)) == [DropDue(table.stages[1])]
