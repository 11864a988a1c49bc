"""Queue selection: each message exactly once, in order within its queue, the same queue both ways."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import InvalidConfiguration, QueueNotFound
from rocketq.model import Message, MessageQueue
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.producing.selection.queue_selectors import (
    STRATEGIES,
    ByHash,
    Explicit,
    QueueSelector,
    Random,
    RoundRobin,
    Selection,
    batch_bytes,
    cut,
    row_ends,
    strategy,
)
from rocketq.protocol.hashing import hash_column, hash_value
from rocketq.protocol.message_schema import from_messages

QUEUES = [MessageQueue("t", broker, n) for broker in ("a", "b") for n in range(3)]


def batch_of(keys: list[bytes | None], body_bytes: int = 8) -> pa.RecordBatch:
    """Messages whose bodies tell their row."""
    return from_messages(
        [Message(row.to_bytes(8, "big") + bytes(body_bytes - 8), key) for row, key in enumerate(keys)]
    )


def rows_of(batch: pa.RecordBatch) -> list[int]:
    return [int.from_bytes(body[:8], "big") for body in batch.column("body").to_pylist()]


selectors = st.sampled_from([*STRATEGIES, "explicit"])


def selector_of(name: str) -> QueueSelector:
    return Explicit(QUEUES[2]) if name == "explicit" else strategy(name).make(None)


def by_key(batch: pa.RecordBatch, slice_bytes: int = 1 << 20) -> Selection:
    """What a partition by the column `key` depends on."""
    return Selection(hashes=hash_column(batch.column("key")), slice_bytes=slice_bytes)


@settings(deadline=None)
@given(
    name=selectors,
    keys=st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=300),
    count=st.integers(3, 6),
    slice_bytes=st.integers(40, 20_000),
)
def test_a_partition_holds_each_message_once_and_in_order_within_its_queue(
    name: str, keys: list[bytes | None], count: int, slice_bytes: int
) -> None:
    queues = QUEUES[:count]
    batch = batch_of(keys)
    parts = selector_of(name).partition(queues, batch, by_key(batch, slice_bytes))
    by_queue: dict[MessageQueue, list[int]] = {}
    for part in parts:
        assert part.queue in queues
        rows = rows_of(part.batch)
        assert rows, "no slice is empty"
        assert rows[0] == part.first_row
        assert rows == part.row_numbers().tolist()
        if part.hashes is not None:
            assert part.hashes.tolist() == hash_column(part.batch.column("key")).tolist()
        by_queue.setdefault(part.queue, []).extend(rows)
    assert sorted(row for rows in by_queue.values() for row in rows) == list(range(len(keys)))
    assert all(rows == sorted(rows) for rows in by_queue.values())


@settings(deadline=None)
@given(
    keys=st.lists(st.binary(max_size=40), min_size=1, max_size=200),
    count=st.integers(1, 6),
)
def test_a_keys_hash_chooses_the_same_queue_in_a_message_and_a_batch(keys: list[bytes], count: int) -> None:
    queues, selector = QUEUES[:count], ByHash()
    batch = batch_of(list(keys))
    placed = {
        row: part.queue
        for part in selector.partition(queues, batch, by_key(batch))
        for row in rows_of(part.batch)
    }
    for row, key in enumerate(keys):
        assert placed[row] == selector.select(queues, Selection(key)) == queues[hash_value(key) % count]


def test_many_messages_keep_their_order_within_a_queue() -> None:
    keys = [b"%d" % (row * 7919 % 13) for row in range(20_000)]
    batch = batch_of(list(keys))
    parts = ByHash().partition(QUEUES, batch, by_key(batch))
    by_queue: dict[MessageQueue, list[int]] = {}
    for part in parts:
        by_queue.setdefault(part.queue, []).extend(rows_of(part.batch))
    assert all(rows == sorted(rows) for rows in by_queue.values())


def test_messages_without_a_key_are_shared_out_under_hash_selection() -> None:
    batch = batch_of([None] * 600)
    parts = ByHash().partition(QUEUES, batch, by_key(batch))
    assert [part.batch.num_rows for part in parts] == [100] * 6


def test_round_robin_takes_each_queue_in_turn_from_a_random_start() -> None:
    selector = RoundRobin(rng=random.Random(3))
    turn = [selector.select(QUEUES, Selection()) for _ in range(12)]
    assert sorted(turn[:6]) == QUEUES
    assert turn[:6] == turn[6:]
    starts = {RoundRobin(rng=random.Random(seed)).select(QUEUES, Selection()) for seed in range(100)}
    assert starts == set(QUEUES)


def test_round_robin_avoids_a_failed_broker_while_there_is_another() -> None:
    selector = RoundRobin()
    failed = Selection(failed=frozenset({"a"}))
    assert {selector.select(QUEUES, failed).broker for _ in range(50)} == {"b"}
    only_a = [q for q in QUEUES if q.broker == "a"]
    assert {selector.select(only_a, failed).broker for _ in range(5)} == {"a"}


def test_round_robin_prefers_the_available_broker_then_the_reachable_one() -> None:
    fault = FaultTolerance()
    selector = RoundRobin(fault)
    fault.record("a", 0, now_ms=0, isolation=True)
    assert {selector.select(QUEUES, Selection(now_ms=1)).broker for _ in range(20)} == {"b"}
    fault.record("b", 20_000, now_ms=0)
    assert {selector.select(QUEUES, Selection(now_ms=1)).broker for _ in range(20)} == {"b"}
    fault.record("b", 0, now_ms=0, isolation=True)
    assert {selector.select(QUEUES, Selection(now_ms=1)).broker for _ in range(20)} == {"a", "b"}


def test_round_robin_spreads_a_large_batch_over_all_queues_evenly() -> None:
    parts = RoundRobin().partition(QUEUES, batch_of([None] * 6_000), Selection())
    assert {part.queue for part in parts} == set(QUEUES)
    assert [part.batch.num_rows for part in parts] == [1_000] * 6


def test_round_robin_sends_a_small_batch_whole_and_then_moves_on() -> None:
    selector = RoundRobin(rng=random.Random(0))
    small = [selector.partition(QUEUES, batch_of([None] * 10), Selection()) for _ in range(6)]
    assert all(len(parts) == 1 for parts in small)
    assert {parts[0].queue for parts in small} == set(QUEUES)


def test_random_selection_reaches_every_queue_and_avoids_the_failed_broker() -> None:
    selector = Random(random.Random(1))
    assert {selector.select(QUEUES, Selection()) for _ in range(200)} == set(QUEUES)
    parts = selector.partition(QUEUES, batch_of([None] * 600), Selection(failed=frozenset({"b"})))
    assert {part.queue.broker for part in parts} == {"a"}
    assert {part.queue.queue for part in parts} == {0, 1, 2}


def test_an_explicit_queue_that_the_route_lacks_is_refused() -> None:
    with pytest.raises(QueueNotFound, match=r"queue 9 on broker 'a'\. It has: a 0 to 2, b 0 to 2"):
        Explicit(MessageQueue("t", "a", 9)).select(QUEUES, Selection())


def test_an_unknown_selection_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="sticky"):
        strategy("sticky")


def test_selection_by_hash_without_ordering_keys_is_refused_and_says_how() -> None:
    with pytest.raises(InvalidConfiguration, match='ordering_key="key"'):
        ByHash().partition(QUEUES, batch_of([b"k"]), Selection())


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=100),
    slice_bytes=st.integers(64, 10_000),
    parts_min=st.integers(1, 8),
)
def test_slices_cover_the_batch_and_are_at_most_half_larger_than_asked_for(
    sizes: list[int], slice_bytes: int, parts_min: int
) -> None:
    batch = from_messages([Message(bytes(size)) for size in sizes])
    edges = cut(batch, slice_bytes, parts_min)
    assert [begin for begin, _ in edges] == [0, *(end for _, end in edges[:-1])]
    assert edges[-1][1] == len(sizes)
    weights = np.diff(row_ends(batch), prepend=0)
    for begin, end in edges:
        assert begin < end
        assert weights[begin:end].sum() <= 1.5 * slice_bytes + weights.max()


def test_a_batch_that_is_a_little_larger_than_a_slice_stays_whole() -> None:
    batch = batch_of([None] * 100, body_bytes=1_000)
    assert cut(batch, batch_bytes(batch) * 3 // 4) == [(0, 100)]
    assert len(cut(batch, batch_bytes(batch) * 5 // 8)) == 2


def test_full_requests_keep_batches_whole_and_take_queues_in_turn() -> None:
    selector = RoundRobin()
    batches = [batch_of([None] * 100, body_bytes=1_000) for _ in QUEUES]
    full = [selector.partition(QUEUES, batch, Selection(reaches_all=False)) for batch in batches]
    assert [len(slices) for slices in full] == [1] * len(QUEUES)
    assert {slices[0].queue for slices in full} == set(QUEUES)
    last = selector.partition(QUEUES, batch_of([None] * 1_000), Selection())
    assert {piece.queue for piece in last} == set(QUEUES)


def test_slices_of_a_slice_measure_only_their_own_rows() -> None:
    batch = batch_of([b"k"] * 100, body_bytes=1_000)
    ends = row_ends(batch)
    assert np.array_equal(row_ends(batch.slice(90)), ends[90:] - ends[89])
    assert batch_bytes(batch.slice(90)) == ends[-1] - ends[89]
