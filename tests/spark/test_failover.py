"""A stream from topic to topic, exactly once, while the broker group that has both loses its masters.

The same group coordinates the sink, takes part in it, and has what the query reads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketq.protocol.documents.broker import CreateTopicRequest
from tests.support.conditions import WAIT_MS
from tests.support.replicated_run import (
    STRIKES,
    TOPIC,
    ReplicatedRun,
    Strike,
    hand_over,
    kill_master,
    pause_master,
)
from tests.support.spark_harness import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

COPY = "orders-copy"
#: A batch that takes longer hangs.
BATCH_S = 300
#: Producers leave the machine to the query, which has to keep up with them.
PAUSE_S = 0.05


def copying(spark: SparkSession, run: ReplicatedRun, checkpoint: Path) -> StreamingQuery:
    nameservers = ",".join(run.cluster.nameservers)
    return (
        spark.readStream.format("rocketq")
        .options(nameservers=nameservers, subscribe=TOPIC, startingOffsets="earliest", groupId="copiers")
        .load()
        .select("value")
        .writeStream.format("rocketq")
        .options(nameservers=nameservers, topic=COPY)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def follow(query: StreamingQuery, run: ReplicatedRun, strikes: Sequence[Strike]) -> None:
    """Strike again and again; the query must write batches after each strike."""
    for strike in strikes:
        run.live(strike)
        before = written(query)
        await_batch(query, before)


def await_batch(query: StreamingQuery, known: int) -> None:
    """Wait for a batch after the one that is known; the first one starts Spark's Python workers."""
    deadline = time.monotonic() + BATCH_S
    while written(query) <= known:
        assert time.monotonic() < deadline, f"no batch after {known} in {BATCH_S} s"
        query.awaitTermination(0.05)


def written(query: StreamingQuery) -> int:
    """How many batches are through; fails if the query has failed."""
    assert query.isActive, str(query.exception())
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def copied_through(
    spark: SparkSession, run: ReplicatedRun, checkpoint: Path, strikes: Sequence[Strike]
) -> None:
    """Copy a topic that grows while the strikes fall; in the end the copy must be equal."""
    run.admin.topics.create(COPY, CreateTopicRequest(2, 2), wait_ms=WAIT_MS)
    query = copying(spark, run, checkpoint)
    try:
        await_batch(query, -1)
        follow(query, run, strikes)
        run.check()
        query.processAllAvailable()
        assert query.isActive, str(query.exception())
    finally:
        query.stop()
    source = Source(run.cluster.nameservers, TOPIC)
    wanted, found = (sorted(row["value"] for row in source.rows(subscribe=each)) for each in (TOPIC, COPY))
    assert found == wanted


def test_a_stream_is_copied_exactly_once_through_two_failovers(spark: SparkSession, tmp_path: Path) -> None:
    with ReplicatedRun(tmp_path / "group", seed=3, nameservers=1, pause_s=PAUSE_S) as run:
        copied_through(spark, run, tmp_path / "checkpoint", [kill_master, hand_over])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_stream_is_copied_exactly_once_through_twenty_four_failovers(
    spark: SparkSession, tmp_path: Path
) -> None:
    with ReplicatedRun(tmp_path / "group", seed=4, pause_s=PAUSE_S) as run:
        failovers = [kill_master, pause_master, hand_over] * 8
        others = [run.rng.choice(STRIKES) for _ in range(6)]
        copied_through(spark, run, tmp_path / "checkpoint", [*failovers, *others])
