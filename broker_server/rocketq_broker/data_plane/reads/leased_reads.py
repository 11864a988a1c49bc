"""Reads what a receive may lease of a queue: messages whose leases ran out first, then new ones.

Everything here runs on a thread that may wait for the disk. Nothing is leased yet: what was read becomes a
wish (`rocketq_broker.store.leases.decisions`), and the log writer decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import CorruptFrame, OffsetOutOfRange
from rocketq.protocol.frame_slices import FrameSlice
from rocketq_broker.data_plane.reads.pull_formats import Decoded, open_chunks
from rocketq_broker.filters.pull_filter import Filter
from rocketq_broker.store.lease_operations import Standing
from rocketq_broker.store.leases.dead_letters import is_dead
from rocketq_broker.store.leases.decisions import OutRun, Wish
from rocketq_broker.store.machines.queue_leases import Range, offsets_of, ranges_of_offsets
from rocketq_broker.store.store import MessageStore

#: Messages of one receive have about so many bytes; one message may have more.
RECEIVE_BYTES_MAX: Final = 4 << 20
#: What a message takes besides its body, about.
_MESSAGE_BYTES: Final = 64
#: Offsets that are read with one pull.
_PULL_SPAN: Final = 1_024


@dataclass(frozen=True, slots=True)
class QueueCall:
    """What a receive asks of one queue: a filter, how much, and after how many attempts messages are dead."""

    topic: str
    queue: int
    chosen: Filter | None
    messages_max: int
    bytes_max: int
    attempts_max: int


@dataclass(slots=True)
class Look:
    """What was found in a queue: the wish, and the messages that it names.

    `dead` are runs that had their last attempt, with their messages. `lost` are leased messages that are not
    stored any more.
    """

    wish: Wish
    slices: list[FrameSlice]
    dead: list[tuple[OutRun, list[FrameSlice]]] = field(default_factory=list)
    lost: list[OutRun] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(each.rows for each in self.slices)

    @property
    def size(self) -> int:
        return _size(self.slices)


def look(store: MessageStore, call: QueueCall, standing: Standing) -> Look:
    """Read what may be leased of a queue. Raises CorruptFrame, TopicNotFound, NoPermission."""
    place = call.topic, call.queue
    made = Look(Wish(place, standing.topic_number, standing.since, standing.since), [])
    try:
        again = list(_again(store, call, standing, made))
        left = min(call.messages_max - made.messages, standing.room)
        bytes_left = call.bytes_max - made.size
        new: tuple[Range, ...] = ()
        next_offset = standing.since
        if left > 0 and bytes_left > 0 and standing.has_new:
            found = _new(store, call, max(standing.since, standing.min), left)
            slices, is_cut = _cut(found.slices, left, bytes_left, is_first=not made.slices)
            made.slices += slices
            new = ranges_of_offsets(_offsets(slices))
            next_offset = sum(new[-1]) if is_cut and new else found.next_offset
    except OffsetOutOfRange:
        # Retention has removed what was to be read; the next look knows.
        return Look(Wish(place, standing.topic_number, standing.since, standing.since), [])
    made.wish = Wish(
        place, standing.topic_number, standing.since, max(standing.since, next_offset), new, tuple(again)
    )
    return made


def _new(store: MessageStore, call: QueueCall, offset: int, messages_max: int) -> Decoded:
    """Read messages that were never leased; with a filter, those that match in a bounded scan."""
    result = store.pull(
        call.topic, call.queue, offset,
        max_bytes=call.bytes_max, max_messages=messages_max, chosen=call.chosen,
    )  # fmt: skip
    if not result.chunks:
        return Decoded((), result.next_offset)
    if call.chosen is not None:
        return _opened(store, call, result.chunks, offset, None, result.next_offset)
    # Whole frames were answered, which may reach past what was asked for.
    return _opened(store, call, result.chunks, offset, offset + messages_max, None)


def _again(store: MessageStore, call: QueueCall, standing: Standing, made: Look) -> Iterator[OutRun]:
    """Read messages whose leases ran out; yield the runs that can be leased again."""
    for run in standing.out:
        # Dead letters count as well, so that one receive reads a bounded amount.
        dead = [piece for _, slices in made.dead for piece in slices]
        left = call.messages_max - made.messages - sum(each.rows for each in dead)
        bytes_left = call.bytes_max - made.size - _size(dead)
        if left <= 0 or bytes_left <= 0:
            return
        wanted = list(offsets_of(run.ranges))[:left]
        gone = [offset for offset in wanted if offset < standing.min]
        slices, missing = _read(store, call, wanted[len(gone) :])
        if gone or missing:
            made.lost.append(OutRun(run.number, run.attempt, ranges_of_offsets(gone + missing)))
        slices, is_cut = _cut(slices, left, bytes_left, is_first=not made.slices and not made.dead)
        if not slices:
            continue
        found = OutRun(run.number, run.attempt, ranges_of_offsets(_offsets(slices)))
        if is_dead(run.attempt, call.attempts_max):
            made.dead.append((found, slices))
        else:
            made.slices += slices
            yield found
        if is_cut and standing.ordered:
            return


def _read(store: MessageStore, call: QueueCall, wanted: list[int]) -> tuple[list[FrameSlice], list[int]]:
    """Read the messages at ascending offsets; return them, and the offsets where salvage left nothing."""
    found: list[FrameSlice] = []
    missing: list[int] = []
    at = 0
    while at < len(wanted):
        first = wanted[at]
        last = next(each for each in reversed(wanted[at:]) if each < first + _PULL_SPAN)
        result = store.pull(
            call.topic, call.queue, first, max_bytes=call.bytes_max, max_messages=last - first + 1
        )
        some = set(wanted[at:])
        reached = result.next_offset
        if result.chunks:
            decoded = _opened(store, call, result.chunks, first, last + 1, None)
            reached = decoded.next_offset
            for piece in decoded.slices:
                offsets = piece.offsets()
                rows = np.flatnonzero([each in some for each in offsets.tolist()])
                if rows.size:
                    found.append(_rows(piece, rows, offsets[rows]))
        there = set(_offsets(found))
        before = at
        while at < len(wanted) and wanted[at] < reached:
            if wanted[at] not in there:
                missing.append(wanted[at])
            at += 1
        if at == before:
            break
    return found, missing


def _opened(
    store: MessageStore,
    call: QueueCall,
    chunks: Sequence[bytes | pa.Buffer],
    begin: int,
    end: int | None,
    scanned_to: int | None,
) -> Decoded:
    try:
        return open_chunks(chunks, begin, end, scanned_to=scanned_to)
    except CorruptFrame as error:
        raise store.located(call.topic, error) from error


def _rows(piece: FrameSlice, rows: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> FrameSlice:
    """Return some messages of a slice."""
    if rows.size == piece.rows:
        return piece
    return FrameSlice(piece.header, int(offsets[0]), piece.batch.take(pa.array(rows)), offsets)


def _offsets(slices: Sequence[FrameSlice]) -> list[int]:
    return [offset for piece in slices for offset in piece.offsets().tolist()]


def _sizes(piece: FrameSlice) -> npt.NDArray[np.int64]:
    """Return about how many bytes each message of a slice has."""
    lengths = pc.binary_length(piece.batch.column("body")).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64) + _MESSAGE_BYTES


def _size(slices: Sequence[FrameSlice]) -> int:
    return sum(int(_sizes(each).sum()) for each in slices)


def _cut(
    slices: Sequence[FrameSlice], messages_max: int, bytes_max: int, *, is_first: bool
) -> tuple[list[FrameSlice], bool]:
    """Return the first messages within the bounds, and whether some were left out.

    With `is_first` there is at least one message if there is any.
    """
    kept: list[FrameSlice] = []
    for piece in slices:
        fits = int(np.searchsorted(np.cumsum(_sizes(piece)), bytes_max, side="right"))
        if is_first and not kept:
            fits = max(1, fits)
        rows = min(piece.rows, fits, messages_max)
        if rows:
            kept.append(piece.part(0, rows))
        if rows < piece.rows:
            return kept, True
        messages_max -= rows
        bytes_max -= int(_sizes(piece).sum())
    return kept, False
