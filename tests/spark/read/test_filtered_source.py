"""Reading through a filter: the rows a plain read has and the expression chooses, and the same progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rocketq.client import Client
from rocketq.errors import InvalidFilter
from rocketq.model import Message
from tests.support.spark_harness import Source, by_queue, masters

Row = dict[str, Any]

FILTERS: list[tuple[dict[str, str], Callable[[Row], bool]]] = [
    ({"tags": "t1 || t7"}, lambda row: row["tag"] in ("t1", "t7")),
    ({"tags": "*"}, lambda row: True),
    ({"tags": "absent"}, lambda row: False),
    ({"sql": "n BETWEEN 50 AND 90 AND TAGS <> 't3'"}, lambda row: 50 <= number(row) <= 90 and has_tag(row)),
    ({"sql": "TAGS IS NULL"}, lambda row: row["tag"] is None),
]


def number(row: Row) -> int:
    return int(row["value"])


def has_tag(row: Row) -> bool:
    return row["tag"] not in (None, "t3")


def send(client: Client, topic: str, first: int, after: int, tag: str | None = None) -> None:
    """Message n has the tag t<n % 10>, but those with n % 10 == 0 none, and the property n."""
    messages = [
        Message(b"%d" % n, tag=tag or (f"t{n % 10}" if n % 10 else None), properties={"n": str(n)})
        for n in range(first, after)
    ]
    with client.producer() as producer:
        for queue in client.route(topic).write_queues():
            producer.send_batch(topic, messages, queue=queue)


@pytest.fixture
def filled(source: Source, client: Client) -> Source:
    """200 messages in each of four queues, in three frames; the last frame has the tag `last` only."""
    send(client, source.topic, 0, 100)
    send(client, source.topic, 100, 150)
    send(client, source.topic, 150, 200, tag="last")
    return source


@pytest.mark.parametrize(("given", "chosen"), FILTERS, ids=[json.dumps(given) for given, _ in FILTERS])
def test_a_batch_has_the_rows_that_match_at_the_offsets_they_have(
    filled: Source, given: dict[str, str], chosen: Callable[[Row], bool]
) -> None:
    plain = filled.rows(includeProperties="true")
    assert len(plain) == 800
    expected = [row for row in plain if chosen(row)]
    assert filled.rows(includeProperties="true", **given) == expected
    # Cut into ranges that begin and end within frames.
    assert filled.rows(includeProperties="true", maxRecordsPerPartition="37", **given) == expected


def test_limits_count_scanned_messages_and_a_run_ends_without_a_match(filled: Source, client: Client) -> None:
    group = f"{filled.topic}-g"
    run = filled.stream(
        startingOffsets="earliest", tags="t1", maxOffsetsPerTrigger="400", groupId=group
    ).prepare()
    run.begin()
    sizes = [len(run.next_batch()), len(run.next_batch())]
    assert sizes == [40, 20]
    assert run.offset == run.reader.latestOffset(run.offset, run.limit)
    lags = [
        queue.max - one.offset
        for broker in masters(filled)
        for one in broker.group_offsets(group, filled.topic).offsets
        for queue in [broker.offsets(filled.topic).queues[one.queue]]
    ]
    assert lags == [0, 0, 0, 0]
    again = filled.stream(tags="t1", longPollMs="0").begin(run.offset)
    send(client, filled.topic, 0, 20)
    rows = again.next_batch()
    assert [row["offset"] for row in rows] == [201, 211] * 4
    assert len(by_queue(rows)) == 4


def test_a_query_may_go_on_with_another_filter(filled: Source) -> None:
    first = filled.stream(startingOffsets="earliest", tags="t1", maxOffsetsPerTrigger="400").begin()
    assert len(first.next_batch()) == 40
    second = filled.stream(sql="TAGS = 'last'", longPollMs="0").begin(first.offset)
    assert len(second.next_batch()) == 200


def test_a_filter_that_the_brokers_would_refuse_is_refused_at_once(source: Source) -> None:
    with pytest.raises(InvalidFilter, match="position 5"):
        source.batch(sql="n >= ")
