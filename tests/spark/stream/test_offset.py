"""Offsets: the checkpoint's form is fixed, and a batch follows from two offsets alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketq.errors import CheckpointUnreadable
from pyspark_rocketq.stream.offset import StreamOffset, batch_ranges, from_json, with_lag
from rocketq.model import MessageQueue

GOLDEN = Path(__file__).parents[2] / "golden" / "spark_offset_v1.json"

A0 = MessageQueue("orders", "broker-a", 0)
A1 = MessageQueue("orders", "broker-a", 1)
A10 = MessageQueue("orders", "broker-a", 10)
B0 = MessageQueue("orders", "broker-b", 0)
P0 = MessageQueue("paid", "broker-a", 0)

names = st.text("ab", min_size=1, max_size=2)
queues = st.builds(MessageQueue, names, names, st.integers(0, 12))
positions = st.dictionaries(queues, st.integers(0, 2**63 - 1), max_size=8)


def golden_offset() -> StreamOffset:
    return StreamOffset(
        positions={P0: 3, A10: 12, A0: 2**40, B0: 0, A1: 7},
        base={B0: 0, A10: 5},
        incarnations={("paid", "broker-a"): "p1", ("orders", "broker-b"): "o2", ("orders", "broker-a"): "o1"},
    )


def test_version_1_is_written_as_it_always_was() -> None:
    assert json.dumps(golden_offset().to_json()) == GOLDEN.read_text().strip()


def test_version_1_is_read_as_it_always_was() -> None:
    assert from_json(json.loads(GOLDEN.read_text())) == golden_offset()


@given(positions, positions)
def test_any_offset_survives_the_checkpoint(positions: dict, base: dict) -> None:
    offset = StreamOffset(positions, base, {("a", "b"): "x"})
    assert from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(st.lists(st.tuples(queues, st.integers(0, 9)), unique_by=lambda pair: pair[0]), st.randoms())
def test_equal_offsets_are_equal_texts(pairs: list, random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert json.dumps(StreamOffset(dict(pairs)).to_json()) == json.dumps(
        StreamOffset(dict(shuffled)).to_json()
    )


def test_a_batch_reads_from_start_to_end() -> None:
    start = StreamOffset({A0: 5, A1: 7})
    end = StreamOffset({A0: 9, A1: 7})
    assert batch_ranges(start, end) == {A0: (5, 9)}


def test_a_new_queue_begins_where_the_end_offset_says() -> None:
    start = StreamOffset({A0: 5})
    end = StreamOffset({A0: 5, B0: 4}, base={B0: 2})
    assert batch_ranges(start, end) == {B0: (2, 4)}


def test_a_replayed_first_batch_reads_the_same_rows() -> None:
    first = StreamOffset({A0: 100}, base={A0: 100})
    end = StreamOffset({A0: 110}, base={A0: 100})
    later = StreamOffset({A0: 150, B0: 3}, base={A0: 150, B0: 3})
    assert batch_ranges(first, end) == batch_ranges(later, end) == {A0: (100, 110)}


def test_a_batch_that_ends_where_it_starts_is_empty() -> None:
    offset = StreamOffset({A0: 5}, base={A0: 2})
    assert batch_ranges(offset, offset) == {}


def test_an_end_without_a_beginning_is_refused() -> None:
    with pytest.raises(CheckpointUnreadable, match="orders/broker-b/0 has an end, 4, and no beginning"):
        batch_ranges(StreamOffset({}), StreamOffset({B0: 4}))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "it is list, not an object"),
        ({"v": 2, "topics": {}, "base": {}, "incarnations": {}}, "its version is 2"),
        ({"topics": {}}, "its version is None"),
        ({"v": 1, "topics": {}}, "KeyError"),
        ({"v": 1, "topics": {"a": {"b": {"x": 1}}}, "base": {}, "incarnations": {}}, "ValueError"),
        ({"v": 1, "topics": {"a": 1}, "base": {}, "incarnations": {}}, "AttributeError"),
    ],
)
def test_a_strange_offset_is_refused_in_words(document: object, said: str) -> None:
    with pytest.raises(CheckpointUnreadable, match=said):
        from_json(document)


def test_lag_counts_what_comes_after_the_batch_where_it_is_known() -> None:
    latest = {
        "topics": {"orders": {"broker-a": {"0": 10, "1": 7}, "broker-b": {"0": 5}, "broker-c": {"0": 9}}},
        "away": {"orders": ["broker-b"]},
    }
    reached = {"topics": {"orders": {"broker-a": {"0": 4, "1": 7}, "broker-b": {"0": 5}}}}
    assert with_lag(latest, reached) == latest | {"lag": {"orders": {"broker-a": {"0": 6, "1": 0}}}}
    assert with_lag(latest, {})["lag"] == {}
