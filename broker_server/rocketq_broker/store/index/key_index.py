"""The key index: finds messages by key. A thread builds it behind the log writer.

The indexer reads the log in whole batches, and never beyond the durable or the confirmed end. It keeps the
entries that it has made since the last index file in memory, and a search looks there too. It writes them to
a sorted file (`index_file`) when they are many, or cover much of the log. After a restart it continues where
the last file ends. The statistics and each search say how many bytes of log are not indexed yet.

A message has the key of its column `key`, the keys in its property KEYS, separated by spaces, and its own id
in its property UNIQ_KEY (RocketMQ: IndexService.buildIndex). The index holds hashes, which only narrow the
search: the topic, key, time and place of each candidate are compared with the log. So a search never returns
a message because of a hash collision, of a deleted topic, or because a file is out of date.

If the indexer cannot read some frames, it continues with the next sound frame and records the range between
as a *hole*, also in the index file. A search returns the holes that may contain matching messages, and the
frames among its candidates that it could not read. Of a frame without keys the indexer reads only the header.

A search holds one decoded batch at a time. It copies the row of each message that it finds, and stops before
the copies exceed `KeyQuery.bytes_max`. `KeyMatches.last` then says where the next search continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import CorruptFrame
from rocketq.model import UNIQUE_ID_PROPERTY
from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import Frame, FrameKind
from rocketq.protocol.frame_slices import FrameSlice
from rocketq.protocol.hashing import PRIME_1, PRIME_2, hash_column, hash_value
from rocketq.protocol.rules.system_properties import KEYS
from rocketq_broker.store.commit.ends import LogEnds
from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.errors import CorruptIndex, SegmentGone, StoreError, UnreadableLog
from rocketq_broker.store.index import index_file
from rocketq_broker.store.index.index_file import (
    EARLIEST_US,
    ENTRY,
    LATEST_US,
    Entries,
    Hole,
    IndexFile,
    Stretch,
    of_hash,
)
from rocketq_broker.store.index.key_query import KeyMatches, KeyQuery, PlaceInLog
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.log.sound_frames import next_sound_frame, sound_frames_behind, sound_header

#: The indexer writes a file after this many entries, or after this many bytes of log.
FILE_ENTRIES: Final = 1 << 20
FILE_LOG_BYTES: Final = 1 << 30
#: What one call of `catch_up` reads of the log, at least.
STEP_BYTES: Final = 64 << 20
#: A file with fewer entries is joined with what follows, so that restarts leave no small files.
SMALL_FILE_ENTRIES: Final = FILE_ENTRIES // 2


@dataclass(frozen=True, slots=True)
class Step:
    """The result of indexing one frame, or of one range of the log that cannot be read."""

    stretch: Stretch
    entries: Entries | None = None
    hole: Hole | None = None
    why: str = ""


def key_hashes(topic: str, column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the hash of `topic` with each key (RocketMQ: buildKey, `topic#key`)."""
    hashes = hash_column(column)
    hashes ^= np.uint64(hash_value(topic))
    hashes *= PRIME_1
    hashes ^= PRIME_2
    return hashes


class KeyIndex:
    """The index files of one store and the part not yet in a file. Its own thread calls `catch_up`."""

    def __init__(
        self,
        files: Files,
        log: CommitLog,
        queues: Queues,
        ends: LogEnds,
        on_damage: Callable[[StoreError], None],
    ) -> None:
        self._files = files
        self._log = log
        self._queues = queues
        self._ends = ends
        self._on_damage = on_damage
        self._lock = threading.Lock()
        #: Held while the index is built: one thread at a time reads the log or writes a file.
        self.building = threading.RLock()
        self._index: list[IndexFile] = []
        self._recent: list[Entries] = []
        self._recent_entries = 0
        self._recent_holes: list[Hole] = []
        #: Candidates of searches that could not be read, by log offset.
        self._met: dict[int, Hole] = {}
        self._stretch = Stretch(0, 0, 0, 0)
        self.notes: list[str] = []

    # --- building ---------------------------------------------------------------------

    def load(self) -> None:
        """Open the files that are sound and leave no gap; remove the others, which are then built again."""
        at: int | None = None
        for name in self._files.list(index_file.DIRECTORY):
            path = f"{index_file.DIRECTORY}/{name}"
            try:
                opened = index_file.read(self._files, path)
            except CorruptIndex as error:
                self.notes.append(error.message)
                self._files.remove(path)
                continue
            joins = at is None or opened.stretch.begin == at
            if any(self._is_readable(each) for each in opened.holes):
                self.notes.append(f"{path} has a hole where the log can be read again; it is built anew.")
                joins = False
            if not joins or opened.stretch.end > self._log.end or opened.stretch.end <= self._log.begin:
                self._files.remove(path)
                continue
            self._index.append(opened)
            at = opened.stretch.end
        if not self._index or self._index[0].stretch.begin > self._log.begin:
            for each in self._index:
                self._files.remove(each.path)
            self._index = []
            at = self._log.begin
        self._restart(self._log.begin if at is None else at)

    def reload(self) -> None:
        """Begin again with the files that fit the log, which was cut; called while `building` is held."""
        with self._lock:
            self._index = []
            self._met.clear()
        self.load()

    def _restart(self, at: int) -> None:
        self._recent, self._recent_entries, self._recent_holes = [], 0, []
        self._stretch = Stretch(at, at, 0, 0)

    @property
    def position(self) -> int:
        """The log offset up to which everything is indexed."""
        return self._stretch.end

    def catch_up(self) -> bool:
        """Index up to `STEP_BYTES` of what is on disk and not indexed; return whether more is left."""
        with self.building:
            end = min(self._ends.durable, self._ends.confirmed)
            begin = max(self.position, self._log.begin)
            for step in walk(self._log, begin, end):
                self._take(step)
                if self._is_due():
                    self.write_file()
                if self.position >= begin + STEP_BYTES:
                    break
            return self.position < end

    def _take(self, step: Step) -> None:
        with self._lock:
            if step.entries is not None:
                self._recent.append(step.entries)
                self._recent_entries += step.entries.size
            if step.hole is not None:
                self._recent_holes.append(step.hole)
            self._stretch = self._stretch.joined(step.stretch)
        if step.hole is not None:
            self._on_damage(UnreadableLog(step.hole.begin, step.hole.end, step.why))

    def _is_due(self) -> bool:
        covered = self._stretch.end - self._stretch.begin
        return self._recent_entries >= FILE_ENTRIES or covered >= FILE_LOG_BYTES

    def write_file(self) -> None:
        """Put what is in memory into a file, together with the last one if that is small."""
        with self.building:
            if self._stretch.begin == self._stretch.end:
                return
            runs, stretch, replaced = list(self._recent), self._stretch, None
            holes = tuple(self._recent_holes)
            last = self._index[-1] if self._index else None
            small = last is not None and last.entries < SMALL_FILE_ENTRIES
            if last is not None and small and last.entries + self._recent_entries <= FILE_ENTRIES:
                runs, stretch, replaced = [last.all(), *runs], last.stretch.joined(stretch), last
                holes = (*last.holes, *holes)
            written = index_file.write(self._files, stretch, _joined(runs), holes)
            with self._lock:
                self._index = [*(self._index[:-1] if replaced else self._index), written]
                self._restart(stretch.end)
            if replaced is not None:
                self._files.remove(replaced.path)

    def holes(self) -> list[Hole]:
        """Return the known ranges of the log that cannot be read."""
        with self._lock:
            indexed = [*(hole for each in self._index for hole in each.holes), *self._recent_holes]
            known = [*indexed, *(hole for hole in self._met.values() if hole not in indexed)]
        return [each for each in known if each.end > self._log.begin]

    def healed(self, begin: int, end: int) -> None:
        """Forget what searches met in a part of the log that is sound again.

        What the indexer passed over there is indexed at the next start (`load`).
        """
        with self._lock:
            self._met = {at: hole for at, hole in self._met.items() if not begin <= at < end}

    def _is_readable(self, hole: Hole) -> bool:
        if hole.begin < self._log.begin:
            return False
        try:
            if self._log.header(hole.begin).kind == FrameKind.LOST:
                return False
        except CorruptFrame:
            return False
        return sound_header(self._log, hole.begin) is not None

    def forget_below(self, log_begin: int) -> None:
        """Remove the files whose stretch of the log is gone."""
        with self.building, self._lock:
            gone = [each for each in self._index if each.stretch.end <= log_begin]
            self._index = self._index[len(gone) :]
            if self.position < log_begin:
                self._restart(log_begin)
        for each in gone:
            self._files.remove(each.path)

    # --- finding ----------------------------------------------------------------------

    def find(self, query: KeyQuery) -> KeyMatches:
        """Return the messages that match a query, newest first, and the holes that may contain more."""
        key_hash = int(key_hashes(query.topic, pa.array([query.key], pa.binary()))[0])
        found: list[FrameSlice] = []
        size, last = 0, None
        with self._lock:
            indexed = [*self._recent_holes, *(hole for each in self._index for hole in each.holes)]
        holes = {
            each.begin: each
            for each in indexed
            if each.end > self._log.begin and each.overlaps(query.begin_us, query.end_us)
        }
        reader = _LastFrame(self._log)
        for entries in self._runs(query, key_hash):
            for place in _newest_first(entries, query.before):
                try:
                    piece = self._rechecked(query, reader, place)
                except CorruptFrame as damage:
                    hole = self._hole_of_damage(place.log_offset, str(damage.facts["why"]))
                    holes[hole.begin] = hole
                    continue
                if piece is None and reader.is_older_than(query.begin_us):
                    # Store times never decrease along the log, so all further entries are older still.
                    break
                if piece is None:
                    continue
                size += piece.batch.nbytes
                if found and size > query.bytes_max:
                    return KeyMatches(tuple(found), _ascending(holes), last)
                found.append(piece)
                last = place
                if len(found) >= query.limit:
                    return KeyMatches(tuple(found), _ascending(holes), last)
        return KeyMatches(tuple(found), _ascending(holes))

    def _hole_of_damage(self, log_offset: int, why: str) -> Hole:
        """Return the hole that begins at a frame which a search could not read; report it once."""
        with self._lock:
            known = self._met.get(log_offset)
        if known is not None:
            return known
        end = min(self._ends.durable, self._ends.confirmed)
        behind = next_sound_frame(self._log, log_offset, end)
        hole = Hole(log_offset, end if behind is None else behind.log_offset)
        with self._lock:
            is_new = self._met.setdefault(log_offset, hole) is hole
        if is_new:
            self._on_damage(UnreadableLog(hole.begin, hole.end, why))
        return hole

    def _runs(self, query: KeyQuery, key_hash: int) -> Iterator[Entries]:
        with self._lock:
            recent, index = list(self._recent), list(self._index)
        if recent:
            yield of_hash(np.concatenate(recent), key_hash)
        for each in reversed(index):
            if each.stretch.overlaps(query.begin_us, query.end_us):
                try:
                    yield each.find(key_hash)
                except CorruptIndex as error:
                    self.notes.append(error.message)
                    yield self._rebuilt(each).find(key_hash)

    def _rebuilt(self, damaged: IndexFile) -> IndexFile:
        """Build a file anew from the log."""
        with self.building:
            current = next((each for each in self._index if each.path == damaged.path), damaged)
            if current is not damaged:
                return current
            begin = max(damaged.stretch.begin, self._log.begin)
            steps = list(walk(self._log, begin, damaged.stretch.end))
            runs = [each.entries for each in steps if each.entries is not None]
            holes = [each.hole for each in steps if each.hole is not None]
            written = index_file.write(self._files, damaged.stretch, _joined(runs), holes)
            with self._lock:
                self._index = [written if each is damaged else each for each in self._index]
            return written

    def _rechecked(self, query: KeyQuery, reader: _LastFrame, place: PlaceInLog) -> FrameSlice | None:
        """Return a copy of the message at a place if it is what the query asks for and still in its queue."""
        log_offset, row = place
        try:
            frame = reader.read(log_offset)
        except SegmentGone:
            return None
        header = frame.header
        if not query.begin_us <= header.stored_at_us <= query.end_us:
            return None
        entry = self._ends.state.topics.get(query.topic)
        if frame.topic != query.topic or entry is None:
            return None
        queue, offset = self._queues.get((entry.number, header.queue)), header.queue_offset + row
        if queue is None or not queue.min <= offset < queue.end:
            return None
        if int(queue.read(offset, 1)["log_offset"][0]) != log_offset:
            return None
        # Not a slice, which would keep the whole batch in memory for one of its messages.
        message = reader.batch(log_offset).take([row])
        if query.key not in set(_keys(message)):
            return None
        return FrameSlice(header, offset, message)


class _LastFrame:
    """Reads and verifies frames, and keeps the last one: entries of one frame come one after the other.

    Its batch is decoded once, and let go of before the next frame is read.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._frame: Frame | None = None
        self._batch: pa.RecordBatch | None = None

    def read(self, log_offset: int) -> Frame:
        """Return the frame at a log offset; raise CorruptFrame, or SegmentGone."""
        if self._frame is None or self._frame.header.log_offset != log_offset:
            self._frame = self._batch = None
            header = self._log.header(log_offset)
            frame = self._log.frame(log_offset, header.size)
            if frame.header.log_offset != log_offset:
                raise CorruptFrame(log_offset, f"it belongs to log offset {frame.header.log_offset}")
            if frame.header.kind == FrameKind.LOST:
                raise CorruptFrame(log_offset, _LOST)
            self._frame = frame
        return self._frame

    def batch(self, log_offset: int) -> pa.RecordBatch:
        """Return the messages of the frame at a log offset; raise as `read` does."""
        frame = self.read(log_offset)
        if self._batch is None:
            self._batch = read_stored(frame.body)
        return self._batch

    def is_older_than(self, at_us: int) -> bool:
        """Whether the frame that was read last was stored before that time."""
        return self._frame is not None and self._frame.header.stored_at_us < at_us


def _newest_first(entries: Entries, before: PlaceInLog | None) -> Iterator[PlaceInLog]:
    """Yield the places of index entries, the last in the log first; only those before `before` if given."""
    log_offsets, rows = entries["log_offset"], entries["row"]
    if before is not None:
        wanted = (log_offsets < before.log_offset) | (
            (log_offsets == before.log_offset) & (rows < before.row)
        )
        log_offsets, rows = log_offsets[wanted], rows[wanted]
    newest_first = np.lexsort((rows, log_offsets))[::-1]
    return map(PlaceInLog, log_offsets[newest_first].tolist(), rows[newest_first].tolist())


def _ascending(holes: dict[int, Hole]) -> tuple[Hole, ...]:
    return tuple(holes[begin] for begin in sorted(holes))


def walk(log: CommitLog, begin: int, end: int) -> Iterator[Step]:
    """Yield what the frames in [begin, end) give to the index, and the holes between them.

    `end` must be where a frame ends. A time is only taken from a frame that was verified.
    """
    at, sound_us = begin, EARLIEST_US
    while at < end:
        try:
            for header, frame in log.keyed_frames(at, end):
                if header.kind == FrameKind.LOST:
                    yield _skip_step(log, header.log_offset, header.log_offset + header.size, sound_us, _LOST)
                elif frame is None:
                    yield Step(Stretch(at, header.log_offset + header.size, 0, 0))
                else:
                    sound_us = header.stored_at_us
                    stretch = Stretch(at, header.log_offset + header.size, sound_us, sound_us)
                    yield Step(stretch, entries_of(frame))
                at = header.log_offset + header.size
        except CorruptFrame as damage:
            behind = next_sound_frame(log, at, end)
            following = end if behind is None else behind.log_offset
            yield _skip_step(log, at, following, sound_us, str(damage.facts["why"]))
            at = following


_LOST: Final = "salvage found it damaged"


def _skip_step(log: CommitLog, begin: int, end: int, sound_us: int, why: str) -> Step:
    behind = sound_frames_behind(log, max(begin, end - 8))
    latest_us = next((each.stored_at_us for each in behind if each.kind != FrameKind.LOST), LATEST_US)
    return Step(Stretch(begin, end, 0, 0), hole=Hole(begin, end, sound_us, latest_us), why=why)


def entries_of(frame: Frame) -> Entries:
    """Return the index entries of all keys of all messages in a frame."""
    batch = read_stored(frame.body)
    hashes: list[npt.NDArray[np.uint64]] = []
    rows: list[npt.NDArray[np.int64]] = []
    keys = batch.column("key")
    if not keys.null_count:
        hashes.append(key_hashes(frame.topic, keys))
        rows.append(np.arange(len(keys)))
    elif keys.null_count < len(keys):
        present = _numbers(pc.indices_nonzero(keys.is_valid()))
        hashes.append(key_hashes(frame.topic, keys)[present])
        rows.append(present)
    for more, parents in _further_keys(batch):
        hashes.append(key_hashes(frame.topic, more))
        rows.append(parents)
    made = np.empty(sum(each.size for each in hashes), dtype=ENTRY)
    at = 0
    for some, their_rows in zip(hashes, rows, strict=True):
        part = made[at : at + some.size]
        part["hash"], part["row"] = some, their_rows
        at += some.size
    made["log_offset"] = frame.header.log_offset
    return made


def _further_keys(batch: pa.RecordBatch) -> list[tuple[pa.Array, npt.NDArray[np.int64]]]:
    """Return the keys in the properties KEYS and UNIQ_KEY, and for each the row that it is of."""
    properties = batch.column("properties")
    if properties.null_count == len(properties):
        return []
    found = []
    joined = pc.map_lookup(properties, pa.scalar(KEYS), "first")
    if joined.null_count < len(joined):
        lists = pc.utf8_split_whitespace(joined)
        found.append((pc.list_flatten(lists), _numbers(pc.list_parent_indices(lists))))
    ids = pc.map_lookup(properties, pa.scalar(UNIQUE_ID_PROPERTY), "first")
    if ids.null_count < len(ids):
        found.append((ids.drop_null(), _numbers(pc.indices_nonzero(ids.is_valid()))))
    return found


def _joined(runs: Sequence[Entries]) -> Entries:
    return np.concatenate(runs) if runs else np.empty(0, dtype=ENTRY)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return 64-bit numbers without nulls; `to_numpy` would load pandas into the broker."""
    return np.frombuffer(column.buffers()[1], dtype=np.int64, count=len(column), offset=8 * column.offset)


def _keys(message: pa.RecordBatch) -> Iterable[bytes]:
    key = message.column("key")[0].as_py()
    if key is not None:
        yield key
    for more, _ in _further_keys(message):
        for each in more:
            yield each.as_py().encode()
