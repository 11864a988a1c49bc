from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import CorruptFrame
from rocketq.model import Message
from rocketq.protocol.frame import FrameKind, encode
from rocketq.protocol.frame_slices import SOURCE, filtered_body, iter_frames, open_frames, open_within_budget
from rocketq.protocol.message_schema import from_messages
from tests.protocol.strategies import CODECS, batches, messages_frame


@st.composite
def runs(draw: st.DrawFn) -> tuple[bytes, dict[int, dict[str, object]]]:
    """Frames of one queue, in order and not always adjacent; and every message by its offset."""
    at = draw(st.integers(0, 2**40))
    data = b""
    rows: dict[int, dict[str, object]] = {}
    for batch in draw(st.lists(batches(max_size=6), max_size=5)):
        at += draw(st.integers(0, 2))
        data += messages_frame(batch, at, codec=draw(CODECS))
        rows |= {at + i: row for i, row in enumerate(batch.select(["key", "tag", "body"]).to_pylist())}
        at += batch.num_rows
    return data, rows


@settings(deadline=None)
@given(runs(), st.data())
def test_frames_are_cut_to_exactly_the_asked_range(
    run: tuple[bytes, dict[int, dict[str, object]]], data: st.DataObject
) -> None:
    frames, rows = run
    low, high = min(rows, default=0) - 3, max(rows, default=0) + 3
    begin = data.draw(st.integers(max(0, low), high))
    end = data.draw(st.none() | st.integers(max(0, low), high))
    got = {
        piece.offset + i: row
        for piece in open_frames(frames, begin, end)
        for i, row in enumerate(piece.batch.select(["key", "tag", "body"]).to_pylist())
    }
    assert got == {at: row for at, row in rows.items() if begin <= at and (end is None or at < end)}
    assert list(got) == sorted(got)


def one(body: bytes = b"x", count: int = 1) -> pa.RecordBatch:
    return from_messages([Message(body)] * count)


def test_an_open_frame_points_into_the_answer_and_copies_nothing() -> None:
    answer = pa.py_buffer(messages_frame(one(b"x" * 1000, 10), 0))
    [piece] = open_frames(answer, 2, 5)
    body = piece.batch.column("body").buffers()[2]
    assert answer.address <= body.address < answer.address + answer.size
    assert (piece.offset, piece.next_offset) == (2, 5)


@pytest.mark.parametrize(
    "second",
    [
        messages_frame(one(), 12, queue=1),
        messages_frame(one(), 11),
        messages_frame(one(), 9),
        messages_frame(one(), 0),
    ],
)
def test_frames_that_go_back_or_change_queues_are_corrupt(second: bytes) -> None:
    first = messages_frame(one(count=2), 10)
    with pytest.raises(CorruptFrame, match="follows") as raised:
        open_frames(first + second, 0)
    assert raised.value.offset == len(first)


def test_a_count_that_differs_from_the_batch_is_corrupt() -> None:
    with pytest.raises(CorruptFrame, match="header says 5"):
        open_frames(messages_frame(one(count=2), 10, count=5), 0)


@pytest.mark.parametrize(("kind", "schema_id"), [(FrameKind.CHANGE, 0), (FrameKind.MESSAGES, 1)])
def test_a_frame_that_is_not_message_1_is_corrupt(kind: FrameKind, schema_id: int) -> None:
    parts = encode(
        kind=kind, topic=b"t", body=b"{}", count=1, log_offset=0, stored_at_us=0, durable_end=0,
        schema_id=schema_id,
    )  # fmt: skip
    with pytest.raises(CorruptFrame, match="is not message/1"):
        open_frames(b"".join(bytes(part) for part in parts), 0)


def test_frames_before_a_corrupt_one_can_still_be_taken_one_by_one() -> None:
    good = messages_frame(one(), 0)
    pieces = iter_frames(good + b"\0" * 80, 0)
    assert next(pieces).offset == 0
    with pytest.raises(CorruptFrame) as raised:
        next(pieces)
    assert raised.value.offset == len(good)


@st.composite
def filtered(draw: st.DrawFn) -> tuple[bytes, dict[int, tuple[object, ...]]]:
    """One filtered frame; by offset each message's body, and the place and time of its source."""
    batch = draw(batches(max_size=8))
    at = draw(
        st.lists(st.integers(0, 2**62), min_size=batch.num_rows, max_size=batch.num_rows, unique=True).map(
            sorted
        )
    )
    starts = sorted({0, *draw(st.sets(st.integers(0, batch.num_rows - 1)))})
    sources = [(64 * start, 1000 + start, end - start) for start, end in pairwise([*starts, batch.num_rows])]
    placed = [source[:2] for source in sources for _ in range(source[2])]
    rows = zip(batch.column("body").to_pylist(), placed, strict=True)
    return filtered_frame(batch, at, sources=sources), dict(zip(at, rows, strict=True))


def filtered_frame(
    batch: pa.RecordBatch,
    offsets: list[int],
    first: int | None = None,
    sources: list[tuple[int, int, int]] | None = None,
) -> bytes:
    sources = [(0, 1000, batch.num_rows)] if sources is None else sources
    parts = encode(
        kind=FrameKind.FILTERED,
        topic=b"orders",
        body=filtered_body(batch, np.array(offsets, dtype=np.int64), np.array(sources, dtype=SOURCE)),
        queue_offset=offsets[0] if first is None else first,
        count=batch.num_rows,
        log_offset=0,
        stored_at_us=1000,
        durable_end=0,
    )
    return b"".join(bytes(part) for part in parts)


@given(filtered(), st.data())
def test_a_cut_filtered_frame_keeps_the_place_and_time_of_each_message(
    made: tuple[bytes, dict[int, tuple[object, ...]]], data: st.DataObject
) -> None:
    frame, messages = made
    near = st.sampled_from(sorted({max(0, at + step) for at in messages for step in (-1, 0, 1)}))
    begin, end = data.draw(near), data.draw(st.none() | near)
    got: dict[int, tuple[object, ...]] = {}
    for piece in open_frames(frame, begin, end):
        assert piece.offset == piece.offsets()[0]
        assert piece.next_offset == piece.offsets()[-1] + 1
        source = piece.header.log_offset, piece.header.stored_at_us
        for offset, body in zip(
            piece.offsets().tolist(), piece.batch.column("body").to_pylist(), strict=True
        ):
            got[offset] = (body, source)
    assert got == {at: row for at, row in messages.items() if begin <= at and (end is None or at < end)}


@given(filtered() | batches(max_size=8).map(lambda batch: (messages_frame(batch, 7), {})), st.data())
def test_the_parts_of_a_slice_are_together_the_slice(
    made: tuple[bytes, dict[int, tuple[object, ...]]], data: st.DataObject
) -> None:
    for piece in open_frames(made[0], 0):
        rows = data.draw(st.integers(1, piece.rows))
        parts = [piece.part(first, rows) for first in range(0, piece.rows, rows)]
        assert np.concatenate([part.offsets() for part in parts]).tolist() == piece.offsets().tolist()
        assert pa.Table.from_batches([part.batch for part in parts]) == pa.Table.from_batches([piece.batch])
        assert all(part.offset == part.offsets()[0] for part in parts)
        assert parts[-1].next_offset == piece.next_offset
        assert {part.header for part in parts} == {piece.header}


def test_a_budget_stops_before_damage_and_raises_at_damage() -> None:
    good = messages_frame(one(), 0)
    found, stopped_at = open_within_budget(iter_frames(good + b"\0" * 80, 0))
    assert ([piece.offset for piece in found], stopped_at) == ([0], 1)
    with pytest.raises(CorruptFrame):
        open_within_budget(iter_frames(b"\0" * 80, 0))
    assert open_within_budget(iter_frames(b"", 0)) == ([], None)


@pytest.mark.parametrize(
    ("offsets", "first"),
    [([5, 5], 5), ([5, 4], 5), ([5, 6], 4), ([5, -1], 5), ([5, -(2**63)], 5), ([5, 2**63 - 1], 5)],
)
def test_filtered_offsets_that_do_not_ascend_are_corrupt(offsets: list[int], first: int) -> None:
    with pytest.raises(CorruptFrame, match="ascend"):
        open_frames(filtered_frame(one(count=2), offsets, first), 0)


@pytest.mark.parametrize(
    "sources",
    [
        [], [(0, 0, 1)], [(0, 0, 3)], [(0, 0, 2), (8, 0, 0)], [(0, 0, -1), (8, 0, 3)], [(0, 0, 1)] * 3,
        [(0, 0, 1), (0, 0, 1)], [(8, 0, 2)], [(0, 0, 1), (-8, 0, 1)], [(0, 0, 2**63 - 1), (8, 0, 3)],
    ],
)  # fmt: skip
def test_sources_that_are_not_those_of_the_messages_are_corrupt(sources: list[tuple[int, int, int]]) -> None:
    with pytest.raises(CorruptFrame, match="sources"):
        open_frames(filtered_frame(one(count=2), [5, 6], sources=sources), 0)
