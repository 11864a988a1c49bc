"""Pushed filters: what is taken on and what is handed back are together what Spark asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pyspark_rocketq.options.message_filter import Filter as Asked
from pyspark_rocketq.read.filter_pushdown import push
from pyspark_rocketq.read.partitions import QueueRange
from rocketq.client import Client
from rocketq.model import Message, MessageQueue
from rocketq.protocol.filters.tags import parse_tags
from tests.support.spark_harness import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TAGS = [None, "a", "b", "c", "b c", ""]
QUEUES = [
    MessageQueue(t, b, q) for t in ("orders", "other") for b in ("broker-a", "broker-b") for q in (0, 1)
]
PER_QUEUE = 12


def time_of(offset: int) -> datetime:
    """Two messages each three microseconds."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=3 * (offset // 2))


ROWS = [
    {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.queue,
        "offset": offset,
        "timestamp": time_of(offset),
        "tag": TAGS[offset % len(TAGS)],
        "value": b"%d" % offset,
    }
    for queue in QUEUES
    for offset in range(PER_QUEUE)
]
LITERALS: dict[str, list[Any]] = {
    "topic": ["orders", "other", "o", "none", ""],
    "broker": ["broker-a", "broker-b", "-a", "b"],
    "queue": [0, 1, 2, -1],
    "offset": [-5, -1, 0, 1, 5, 11, 12, 40],
    "timestamp": [time_of(n) + timedelta(microseconds=d) for n in (0, 3, 8, 11) for d in (-1, 0, 1)]
    + [datetime(1960, 1, 1, tzinfo=UTC)],
    "tag": [tag for tag in TAGS if tag is not None] + ["z"],
    "value": [b"3"],
}
COMPARING = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
MATCHING = [StringStartsWith, StringEndsWith, StringContains]


def kinds(column: str) -> list[Any]:
    return COMPARING + (MATCHING if column in ("topic", "broker", "tag") else [])


def singles() -> Iterator[Filter]:
    """Every filter on every column with one literal, and its opposite."""
    for column, literals in LITERALS.items():
        made = [kind((column,), literal) for kind in kinds(column) for literal in literals]
        made += [In((column,), (literals[0], literals[-1])), In((column,), (literals[-1], None))]
        made += [EqualNullSafe((column,), None), IsNull((column,)), IsNotNull((column,))]
        for one in made:
            yield from (one, Not(one))


def truth(one: Filter, row: dict[str, Any]) -> bool | None:
    """What SQL says of a row; None is UNKNOWN."""
    if isinstance(one, Not):
        inner = truth(one.child, row)
        return None if inner is None else not inner
    value = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, IsNull | IsNotNull):
        return (value is None) is isinstance(one, IsNull)
    literal = one.value  # type: ignore[attr-defined]
    if isinstance(one, EqualNullSafe):
        return value == literal if literal is not None else value is None
    if value is None:
        return None
    if isinstance(one, In):
        return True if value in literal else None if None in literal else False
    return {
        EqualTo: lambda: value == literal,
        GreaterThan: lambda: value > literal,
        GreaterThanOrEqual: lambda: value >= literal,
        LessThan: lambda: value < literal,
        LessThanOrEqual: lambda: value <= literal,
        StringStartsWith: lambda: value.startswith(literal),
        StringEndsWith: lambda: value.endswith(literal),
        StringContains: lambda: literal in value,
    }[type(one)]()


def first_at(at_us: int) -> int:
    times = [(time_of(n) - time_of(0)) // timedelta(microseconds=1) for n in range(PER_QUEUE)]
    return next((n for n, at in enumerate(times) if at >= at_us), PER_QUEUE)


def test_every_single_filter_is_taken_on_or_handed_back_rightly() -> None:
    for one in singles():
        check([one], None)


@given(
    st.lists(st.sampled_from(list(singles())), min_size=2, max_size=4),
    st.sampled_from([None, "a || b", "c"]),
)
def test_pushed_and_remaining_filters_together_give_the_rows_asked_for(
    asked: list[Filter], tags: str | None
) -> None:
    check(asked, tags)


def check(asked: list[Filter], tags: str | None) -> None:
    narrowing, chosen, back = push(asked, Asked(tags=tags))
    assert all(any(one is each for each in asked) for one in back)
    delivered = parse_tags(chosen.tags) if chosen.tags is not None else None
    read = []
    for queue in QUEUES:
        left = narrowing.narrowed(QueueRange(queue, 0, PER_QUEUE), first_at)
        assert 0 <= left.begin <= left.end <= PER_QUEUE
        read += [
            row for row in ROWS
            if (row["topic"], row["broker"], row["queue"]) == (queue.topic, queue.broker, queue.queue)
            and left.begin <= row["offset"] < left.end
            and (delivered is None or row["tag"] in delivered)
        ]  # fmt: skip
    before = [row for row in ROWS if tags is None or row["tag"] in parse_tags(tags)]
    expected = [row for row in before if all(truth(one, row) is True for one in asked)]
    assert [row for row in read if all(truth(one, row) is True for one in back)] == expected, asked


@pytest.mark.parametrize(
    "taken",
    [
        EqualTo(("topic",), "orders"),
        Not(In(("broker",), ("broker-a",))),
        LessThan(("queue",), 1),
        GreaterThanOrEqual(("timestamp",), time_of(3)),
        LessThanOrEqual(("offset",), 3),
        In(("tag",), ("a", "b")),
        IsNotNull(("offset",)),
        StringStartsWith(("topic",), "ord"),
    ],
    ids=repr,
)
def test_what_brokers_and_ranges_can_do_is_not_done_again(taken: Filter) -> None:
    assert push([taken], Asked())[2] == []


def test_tags_are_joined_with_the_filter_of_the_options() -> None:
    wanted = [IsNotNull(("tag",)), In(("tag",), ("paid", "it's"))]
    _, chosen, back = push(wanted, Asked(sql="n > 5 -- large"))
    assert back == []
    assert chosen == Asked(sql="(n > 5 -- large\n) AND TAGS IN ('it''s', 'paid')")
    assert push(wanted, Asked(tags="paid || open"))[1] == Asked(tags="paid")
    assert push(wanted, Asked(tags="open"))[0].nothing
    full = Asked(sql=f"n = '{'x' * 4080}'")
    assert push(wanted, full)[1:] == (full, wanted)


CONDITIONS = [
    "tag IN ('t1', 't2', 't 3') AND timestamp >= '{middle}' AND NOT (queue = 1)",
    "tag <> 't1' AND broker = 'broker-a' AND offset BETWEEN 3 AND 7 AND topic LIKE 'test%'",
    "timestamp < '{middle}' AND offset IN (0, 5, 19) AND value > X'31'",
    "timestamp = '{middle}' OR tag IS NULL",
]


@pytest.mark.spark
def test_with_pushed_filters_spark_finds_the_rows_it_finds_without(
    spark: SparkSession, source: Source, client: Client
) -> None:
    with client.producer() as producer:
        for part in range(4):
            for queue in client.route(source.topic).write_queues():
                sent = [
                    Message(b"%d" % n, tag=f"t{n % 4}" if n % 4 else None)
                    for n in range(5 * part, 5 * part + 5)
                ]
                producer.send_batch(source.topic, sent, queue=queue)
    options = source.options({"sql": "TAGS IS NULL OR TAGS <> 't9'"})
    plain = spark.read.format("rocketq").options(**options).load()
    stored = sorted(source.rows(), key=lambda row: (row["broker"], row["queue"], row["offset"]))
    text = stored[9]["timestamp"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    conditions = [condition.format(middle=text) for condition in CONDITIONS]
    judged = plain.selectExpr("*", *(f"({c}) AS c{i}" for i, c in enumerate(conditions))).collect()
    assert len(judged) == 80
    names = plain.columns

    def pushing() -> DataFrame:
        # Spark keeps what it planned for a DataFrame's first use, so each has one.
        return spark.read.format("rocketq").options(pushFilters="true", **options).load()

    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        pushing().count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for i, condition in enumerate(conditions):
            expected = [tuple(row[name] for name in names) for row in judged if row[f"c{i}"]]
            found = [tuple(row) for row in pushing().where(condition).collect()]
            assert sorted(map(str, found)) == sorted(map(str, expected)), condition
        assert pushing().where("queue = 0 AND broker = 'broker-b'").rdd.getNumPartitions() == 1
        # Without the option nothing is pushed, so a DataFrame may be used again and again.
        assert plain.where(conditions[0]).count() == sum(bool(row["c0"]) for row in judged)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
