"""Delivery times: RocketMQ's names and precedence, and that a batch is judged as its messages one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import InvalidBatch, InvalidConfiguration, InvalidMessage
from rocketq.model import Message
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import (
    DELIVERY_PROPERTIES,
    LEVELS_MS,
    NO_TIME,
    Horizon,
    column_times,
    delivery_properties,
    delivery_time,
    delivery_times,
    stored_times,
    timed_properties,
    with_times,
)
from tests.support.examples import examples

NOW_MS = 1_700_000_000_000
HORIZON = Horizon(NOW_MS, 3 * 86_400_000)


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_SEC": "5"}, 5_000),
        ({"TIMER_DELAY_MS": "5"}, 5),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 7)}, 7),
        ({"__STARTDELIVERTIME": str(NOW_MS + 7)}, 7),
        ({"DELAY": "1"}, 1_000),
        ({"DELAY": "3"}, 10_000),
        ({"DELAY": "18"}, 7_200_000),
        ({"DELAY": "99"}, 7_200_000),
        ({"DELAY": "0"}, None),
        ({"DELAY": "18", "TIMER_DELAY_MS": "5"}, 5),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "5", "TIMER_DELAY_SEC": "2"}, 2_000),
        ({"TIMER_DELIVER_MS": str(NOW_MS - 100)}, -100),
        ({"KEYS": "a"}, None),
        ({}, None),
    ],
)
def test_the_properties_mean_what_they_mean_in_rocketmq(
    properties: dict[str, str], delay_ms: int | None
) -> None:
    expected = None if delay_ms is None else NOW_MS + delay_ms
    assert delivery_time(properties, HORIZON) == expected
    times = delivery_times(from_messages([Message(b"", properties=properties)]), HORIZON)
    assert (None if times is None else times.tolist()) == (None if expected is None else [expected])


def test_the_levels_are_rocketmq_s_eighteen() -> None:
    names = [
        "1s",
        "5s",
        "10s",
        "30s",
        "1m",
        "2m",
        "3m",
        "4m",
        "5m",
        "6m",
        "7m",
        "8m",
        "9m",
        "10m",
        "20m",
        "30m",
        "1h",
        "2h",
    ]
    assert [delivery_properties(name, None)["TIMER_DELAY_MS"] for name in names] == list(map(str, LEVELS_MS))


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "1e3", " 5", "5 ", "٣", "9" * 19])
@pytest.mark.parametrize("name", DELIVERY_PROPERTIES)
def test_a_value_that_is_no_whole_number_is_refused(name: str, value: str) -> None:
    batch = from_messages([Message(b""), Message(b"", properties={name: value})])
    with pytest.raises(InvalidMessage, match="not a whole number") as alone:
        delivery_time({name: value}, HORIZON)
    with pytest.raises(InvalidMessage, match="not a whole number") as raised:
        delivery_times(batch, HORIZON, first_row=10)
    assert (alone.value.facts["value"], raised.value.facts["row"]) == (name, 11)


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("TIMER_DELAY_SEC", 259_200),
        ("TIMER_DELAY_MS", 259_200_000),
        ("TIMER_DELIVER_MS", NOW_MS + 259_200_000),
    ],
)
def test_a_time_beyond_the_horizon_is_refused_and_the_horizon_is_named(name: str, last: int) -> None:
    assert delivery_time({name: str(last)}, HORIZON) == NOW_MS + 259_200_000
    for value in (last + 1, 10**18 - 1):
        for judge in (
            lambda properties: delivery_time(properties, HORIZON),
            lambda properties: delivery_times(from_messages([Message(b"", properties=properties)]), HORIZON),
        ):
            with pytest.raises(InvalidMessage, match=r"beyond the broker's horizon.*259200000 ms"):
                judge({name: str(value)})


VALUES = st.sampled_from(["0", "3", "5000", str(NOW_MS + 9), str(10**17), "x", ""])
PROPERTIES = st.none() | st.dictionaries(
    st.sampled_from([*DELIVERY_PROPERTIES, "region", "", "TIMER_X", "D"]), VALUES, max_size=4
)


@settings(max_examples=examples(300))
@given(st.lists(PROPERTIES, min_size=1, max_size=8), st.integers(0, 3))
def test_a_batch_is_judged_as_its_messages_one_by_one(
    given_properties: list[dict[str, str] | None], skipped: int
) -> None:
    """Also slices, whose columns share the memory of the whole."""
    batch = from_messages([Message(b"", properties=each) for each in given_properties]).slice(skipped)
    rest = given_properties[skipped:]
    try:
        expected = [delivery_time(each, HORIZON) for each in rest]
    except InvalidMessage:
        # A property that is shadowed by another one is judged as well.
        with pytest.raises(InvalidMessage):
            delivery_times(batch, HORIZON)
        return
    try:
        times = delivery_times(batch, HORIZON)
    except InvalidMessage:
        return
    if times is None:
        assert expected == [None] * len(rest)
        return
    assert [None if at == NO_TIME else at for at in times.tolist()] == expected
    stored = with_times(batch, times)
    stored.validate(full=True)
    assert stored_times(stored).tolist() == times.tolist()
    for before, after, at in zip(rest, stored.column("properties").to_pylist(), expected, strict=True):
        wanted = before if at is None else timed_properties(before or {}, at)
        if at is None and before is not None:
            wanted = {name: value for name, value in before.items() if name not in DELIVERY_PROPERTIES}
        assert (None if after is None else dict(after)) == wanted


@pytest.mark.parametrize(
    ("delay", "ms"),
    [("10s", 10_000), ("1.5m", 90_000), ("0ms", 0), ("2h", 7_200_000), ("1d", 86_400_000),
     (timedelta(microseconds=1), 1), (timedelta(seconds=2), 2_000), (timedelta(0), 0)],
)  # fmt: skip
def test_a_delay_is_a_number_with_a_unit_or_a_timedelta(delay: str | timedelta, ms: int) -> None:
    assert delivery_properties(delay, None) == {"TIMER_DELAY_MS": str(ms)}


@pytest.mark.parametrize("delay", ["10", "s", "-5s", "1w", "", "1e9d" * 9, timedelta(seconds=-1), 10])
def test_what_is_no_delay_is_refused(delay: str | timedelta) -> None:
    with pytest.raises(InvalidConfiguration, match="delay"):
        delivery_properties(delay, None)


def test_a_delivery_time_is_rounded_up_so_that_nothing_is_early() -> None:
    at = datetime(2026, 11, 22, 12, 0, 0, 1, tzinfo=UTC)
    whole = int(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()) * 1000
    assert delivery_properties(None, at) == {"TIMER_DELIVER_MS": str(whole + 1)}
    there = at.astimezone(timezone(timedelta(hours=5)))
    assert delivery_properties(None, there) == delivery_properties(None, at)
    assert delivery_properties(None, whole) == {"TIMER_DELIVER_MS": str(whole)}


@pytest.mark.parametrize("at", [datetime(2026, 1, 1), -1, True, datetime(1960, 1, 1, tzinfo=UTC), 2**70])
def test_what_is_no_delivery_time_is_refused(at: datetime | int) -> None:
    with pytest.raises(InvalidConfiguration, match="deliver_at"):
        delivery_properties(None, at)


def test_a_delay_and_a_time_contradict_each_other() -> None:
    with pytest.raises(InvalidConfiguration, match="contradicts"):
        delivery_properties("1s", 5)


def test_a_column_of_times_may_be_timestamps_or_milliseconds() -> None:
    times = [5, None, 1_234]
    for column in (
        pa.array(times, pa.int64()),
        pa.array(times, pa.timestamp("ms", tz="UTC")),
        pa.array([None if at is None else at * 1000 for at in times], pa.timestamp("us", tz="Europe/Berlin")),
        pa.chunked_array([pa.array(times[:1], pa.int32()), pa.array(times[1:], pa.int32())]),
    ):
        assert column_times(column).tolist() == [5, NO_TIME, 1_234]
    late = pa.array([1_001], pa.timestamp("us", tz="UTC"))
    assert column_times(late).tolist() == [2]
    assert column_times(pa.nulls(2)).tolist() == [NO_TIME, NO_TIME]


@pytest.mark.parametrize(
    "column",
    [pa.array([5], pa.timestamp("ms")), pa.array([1.5]), pa.array(["soon"]), pa.array([-7], pa.int64())],
)
def test_a_column_that_has_no_points_in_time_is_refused(column: pa.Array) -> None:
    with pytest.raises(InvalidBatch, match="deliver_at"):
        column_times(column)


def test_times_of_a_stored_batch_are_numpy_integers_of_64_bits() -> None:
    assert stored_times(from_messages([Message(b"")])).dtype == np.int64
