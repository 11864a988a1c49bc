"""The scan of a filtered pull: the broker answers only the messages that match.

A filter may know the hashes of its tags. Then the ConsumeQueue's units alone tell which messages can
match, and frames without such a candidate are not read. The filter's exact test runs on the candidates, so
a hash collision is never delivered. A filter without hashes tests whole batches.

The scan reads a frame with a candidate whole and verifies its checksum before it uses any byte: the answer
gets a checksum of its own, which would hide earlier damage from the client. The batch is not validated
again, because the broker validated it when it was stored.

The candidates of many frames are gathered, tested together, and become one *filtered* frame that says for
each message where it came from (`rocketq.protocol.frame_slices`). One request scans a bounded amount and
says where it stopped: a rare match costs many small answers, never an endless one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import CorruptFrame
from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import Frame, FrameHeader, FrameKind, encode, verify
from rocketq.protocol.frame_slices import SOURCE, filtered_body
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, MESSAGE_SCHEMA_ID, nulls
from rocketq_broker.store.filtered_pull.candidates import Piece, Room, pieces, read_together
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queue import ConsumeQueue
from rocketq_broker.store.log.frame_lookup import read_frames, refuse

#: What one filtered pull looks at, in messages and in bytes of frames read.
SCAN_MESSAGES_MAX: Final = 1 << 18
SCAN_BYTES_MAX: Final = 32 << 20
#: A filtered frame is made when its candidates have this many bytes; one frame's may have more.
GATHERED_BYTES_MAX: Final = 4 << 20
#: What a row takes besides its values: offsets, validity, its own queue offset.
_ROW_BYTES: Final = 40
#: `Array.take` costs half as much again, for the options it makes and the bounds it checks.
_TAKE: Final = pc.get_function("array_take")
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)

#: The columns of message/1; None is one that is all null.
Columns = list[pa.Array | None]


class MessageFilter(Protocol):
    """What a selection needs of a filter."""

    @property
    def hashes(self) -> npt.NDArray[np.uint64] | None:
        """The tag hashes that can match, or None if tags do not decide."""
        ...

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each message whether it matches."""
        ...


@dataclass(frozen=True, slots=True)
class Selected:
    """The filtered frames and the queue offset where the scan stopped."""

    chunks: list[bytes]
    next_offset: int


def select(
    log: CommitLog,
    queue: ConsumeQueue,
    topic: str,
    offset: int,
    end: int,
    chosen: MessageFilter,
    max_bytes: int,
    max_messages: int | None,
) -> Selected:
    """Scan [offset, end) for messages that match until a limit is reached; always advances."""
    stop = min(end, offset + SCAN_MESSAGES_MAX)
    wanted = end - offset if max_messages is None else max_messages
    scan = _Scan(log, queue, topic, chosen, max_bytes, wanted)
    try:
        reached = _run(scan, log, pieces(log, queue, offset, stop, chosen.hashes), stop)
        scan.finish()
    except CorruptFrame:
        # What was found before the damage is answered; the next scan begins behind it and meets the damage.
        scan.finish()
        if not scan.chunks:
            raise
        reached = scan.next_offset
    return Selected(scan.chunks, scan.next_offset if scan.found >= wanted else reached)


def _run(scan: _Scan, log: CommitLog, found: Iterator[Piece], stop: int) -> int:
    """Have a scan take pieces until it is done; return the offset that it reached, at most `stop`."""
    for together in read_together(found, scan.room):
        frames = read_frames(log, [piece.place for piece in together])
        for piece in together:
            header = scan.take(piece, next(frames))
            if scan.is_done:
                return min(header.next_queue_offset, stop)
    return stop


@dataclass(slots=True)
class _Gathered:
    """Messages of frames in a row; `counts` tells how many are from the frame of each header."""

    headers: list[FrameHeader] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    offsets: list[npt.NDArray[np.int64]] = field(default_factory=list)
    columns: list[Columns] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, header: FrameHeader, offsets: npt.NDArray[np.int64], columns: Columns, size: int) -> None:
        if self.headers and self.headers[-1].log_offset == header.log_offset:
            self.counts[-1] += offsets.size
        else:
            self.headers.append(header)
            self.counts.append(offsets.size)
        self.offsets.append(offsets)
        self.columns.append(columns)
        self.rows += offsets.size
        self.bytes += size

    def batch(self) -> pa.RecordBatch:
        """Join the columns of all frames; one that is null in each is made here, at once."""
        joined = []
        for kind, parts in zip(MESSAGE_SCHEMA.types, zip(*self.columns, strict=True), strict=True):
            if parts.count(None) == len(parts):
                joined.append(nulls(self.rows, kind))
                continue
            sizes = [offsets.size for offsets in self.offsets]
            whole = [
                nulls(size, kind) if part is None else part for part, size in zip(parts, sizes, strict=True)
            ]
            joined.append(whole[0] if len(whole) == 1 else pa.concat_arrays(whole))
        return pa.RecordBatch.from_arrays(joined, schema=MESSAGE_SCHEMA)


class _Scan:
    """One filtered pull: what it gathered, what it answers, and when it has enough."""

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, topic: str, chosen: MessageFilter, max_bytes: int,
        wanted: int,
    ) -> None:  # fmt: skip
        self._log = log
        self._queue = queue
        self._topic = topic
        self._chosen = chosen
        # Candidates, told by their tags' hashes, are tested when they are gathered. Of whole batches few
        # messages may match, so those are tested at once.
        self._by_hash = chosen.hashes is not None
        self._bytes_max = max_bytes
        self._bytes = self._read = 0
        self._gathered = _Gathered()
        self.wanted = wanted
        self.found = 0
        self.next_offset = 0
        self.chunks: list[bytes] = []

    @property
    def is_done(self) -> bool:
        return self._bytes >= self._bytes_max or self._read >= SCAN_BYTES_MAX or self.found >= self.wanted

    def room(self) -> Room:
        """Return what can be taken before it is done."""
        gathered = self._gathered
        return Room(
            self.wanted - self.found - gathered.rows,
            self._bytes_max - self._bytes - gathered.bytes,
            SCAN_BYTES_MAX - self._read,
        )

    def take(self, piece: Piece, data: pa.Buffer) -> FrameHeader:
        """Gather the candidates of one frame; make a filtered frame when it is time."""
        offsets = piece.offsets
        header, batch = self._open(piece, data)
        rows = offsets - header.queue_offset
        if not self._by_hash:
            if offsets.size < batch.num_rows:
                batch = batch.take(pa.array(rows))
            rows = np.flatnonzero(self._chosen.mask(batch))
            if not rows.size:
                return header
            offsets = offsets[rows]
        columns = _taken(batch, rows)
        size = _ROW_BYTES * rows.size + sum(
            column.get_total_buffer_size() for column in columns if column is not None
        )
        if self._gathered.bytes + size > GATHERED_BYTES_MAX:
            self.finish()
        gathered = self._gathered
        gathered.add(header, offsets, columns, size)
        if gathered.rows >= self.wanted - self.found or self._bytes + gathered.bytes >= self._bytes_max:
            self.finish()
        return header

    def _open(self, piece: Piece, data: pa.Buffer) -> tuple[FrameHeader, pa.RecordBatch]:
        """Verify a frame and open it; raise CorruptFrame, or CorruptQueue if it is not the one looked for."""
        place, queue = piece.place, self._queue
        try:
            frame = verify(data)
        except CorruptFrame as error:
            raise CorruptFrame(place.log_offset + error.offset, error.facts["why"]) from None
        self._read += place.size
        header = frame.header
        holds = header.queue_offset <= place.offset and piece.offsets[-1] < header.next_queue_offset
        found = header.size, header.log_offset, header.queue, frame.topic
        if not holds or found != (place.size, place.log_offset, queue.id, self._topic):
            refuse(self._log, queue, place)
        return header, _opened(frame)

    def finish(self) -> None:
        """Make a filtered frame of what was gathered and matches."""
        gathered, self._gathered = self._gathered, _Gathered()
        if not gathered.rows:
            return
        batch = gathered.batch()
        offsets = np.concatenate(gathered.offsets)
        keep = np.flatnonzero(self._chosen.mask(batch)) if self._by_hash else np.arange(offsets.size)
        keep = keep[: self.wanted - self.found]
        if not keep.size:
            return
        if keep.size < offsets.size:
            # A hash collided, or more were found than are wanted.
            batch, offsets = batch.take(pa.array(keep)), offsets[keep]
        chunk = _filtered(self._topic, gathered, keep, offsets, batch)
        self.chunks.append(chunk)
        self._bytes += len(chunk)
        self.found += keep.size
        self.next_offset = int(offsets[-1]) + 1


def _opened(frame: Frame) -> pa.RecordBatch:
    """Open the batch of a frame whose checksum holds; raise CorruptFrame."""
    header = frame.header
    if header.kind != FrameKind.MESSAGES or header.schema_id != MESSAGE_SCHEMA_ID:
        raise CorruptFrame(
            header.log_offset, f"kind {header.kind}, schema {header.schema_id} is not message/1"
        )
    try:
        batch = read_stored(frame.body)
    except (pa.ArrowException, OSError) as error:
        raise CorruptFrame(header.log_offset, str(error)) from error
    if batch.num_rows != header.count:
        raise CorruptFrame(
            header.log_offset, f"the batch has {batch.num_rows} messages, the header says {header.count}"
        )
    return batch


def _taken(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> Columns:
    """Return the columns of some rows, which are within the batch; None for one of nulls, as most are."""
    count = batch.num_rows
    if rows.size == count:
        return [None if column.null_count == count else column for column in batch.columns]
    indices = pa.array(rows)
    return [
        None if column.null_count == count else _TAKE.call([column, indices], _UNCHECKED)
        for column in batch.columns
    ]


def _filtered(
    topic: str,
    gathered: _Gathered,
    keep: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    batch: pa.RecordBatch,
) -> bytes:
    """Return the filtered frame of the messages `keep` of those gathered, with their offsets and rows."""
    counts = np.diff(np.searchsorted(keep, np.cumsum(gathered.counts)), prepend=0)
    used = np.flatnonzero(counts)
    sources = np.empty(used.size, dtype=SOURCE)
    headers = [gathered.headers[index] for index in used.tolist()]
    sources["log_offset"] = [header.log_offset for header in headers]
    sources["stored_at_us"] = [header.stored_at_us for header in headers]
    sources["count"] = counts[used]
    first = headers[0]
    parts = encode(
        kind=FrameKind.FILTERED,
        topic=topic.encode(),
        body=filtered_body(batch, offsets, sources),
        queue=first.queue,
        queue_offset=int(offsets[0]),
        count=int(keep.size),
        log_offset=first.log_offset,
        stored_at_us=first.stored_at_us,
        durable_end=first.durable_end,
        epoch=first.epoch,
    )
    return b"".join(parts)
