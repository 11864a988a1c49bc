"""The key index: finding messages by key, built behind the writer.

The indexer follows the log at its own pace, whole batches at a time, and never
past what is on disk. What it has read since the last file is held in memory
and searched there too, so a message can be found as soon as it was read; it is
written out as a sorted file (`index_file`) when it is large enough or covers
much of the log. A restart goes on where the last file ends. How far behind the
indexer is, in bytes of log, is in the statistics; a query says it too.

A message has the keys of its `key` column and, separated by spaces, of its
property KEYS (RocketMQ: IndexService.buildIndex). Hashes only narrow the search:
topic, key, time and place are rechecked in the log, so a collision, a deleted
topic's message or a stale file is never returned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.protocol.frame import Frame, verify
from rocketq.protocol.hashing import PRIME_1, PRIME_2, hash_column, hash_value
from rocketq.protocol.ipc import read_stored
from rocketq.protocol.slices import FrameSlice
from rocketq.protocol.system_properties import KEYS
from rocketq_broker.store import index_file
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.errors import CorruptIndex, SegmentGone
from rocketq_broker.store.files import Files
from rocketq_broker.store.index_file import ENTRY, Entries, IndexFile, Stretch, of_hash
from rocketq_broker.store.queues import Queues
from rocketq_broker.store.writer import Published

#: A file is written at this many entries, or when this much log has gone by without.
FILE_ENTRIES: Final = 1 << 20
FILE_LOG_BYTES: Final = 1 << 30
#: Files smaller than this are joined with what follows, so restarts leave no crumbs.
SMALL_FILE_ENTRIES: Final = FILE_ENTRIES // 2


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """What to find: messages of `topic` with `key`, stored within [begin_us, end_us], newest first."""

    topic: str
    key: bytes
    begin_us: int = 0
    end_us: int = (1 << 63) - 1
    limit: int = 64


def key_hashes(topic: str, column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the hash of `topic` with each key (RocketMQ: buildKey, `topic#key`)."""
    hashes = hash_column(column)
    hashes ^= np.uint64(hash_value(topic))
    hashes *= PRIME_1
    hashes ^= PRIME_2
    return hashes


class KeyIndex:
    """The index files of one store and the part not yet in a file. Its own thread calls `catch_up`."""

    def __init__(self, files: Files, log: CommitLog, queues: Queues, published: Published) -> None:
        self._files = files
        self._log = log
        self._queues = queues
        self._published = published
        self._lock = threading.Lock()
        #: Held by whoever builds: one at a time follows the log or writes a file.
        self._building = threading.RLock()
        self._index: list[IndexFile] = []
        self._recent: list[Entries] = []
        self._recent_entries = 0
        self._stretch = Stretch(0, 0, 0, 0)
        self.notes: list[str] = []

    # --- building ---------------------------------------------------------------------

    def load(self) -> None:
        """Take the files that are sound and join on to each other; remove the rest, to be built anew."""
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

    def _restart(self, at: int) -> None:
        self._recent, self._recent_entries = [], 0
        self._stretch = Stretch(at, at, 0, 0)

    @property
    def position(self) -> int:
        """The log offset up to which everything is indexed."""
        return self._stretch.end

    def catch_up(self, bytes_max: int = 64 << 20) -> bool:
        """Index up to `bytes_max` of what is on disk and not indexed; return whether more is left."""
        with self._building:
            return self._catch_up(bytes_max)

    def _catch_up(self, bytes_max: int) -> bool:
        end = self._published.durable_end
        begin = max(self.position, self._log.begin)
        stop = min(end, begin + bytes_max)
        for header, frame in self._log.keyed_frames(begin, end):
            entries = None if frame is None else entries_of(frame)
            with self._lock:
                if entries is not None:
                    self._recent.append(entries)
                    self._recent_entries += entries.size
                at, stored = header.log_offset + header.size, header.stored_at_us
                self._stretch = self._stretch.joined(Stretch(begin, at, stored, stored))
            if self._is_due():
                self.write_file()
            if self.position >= stop:
                break
        return self.position < end

    def _is_due(self) -> bool:
        covered = self._stretch.end - self._stretch.begin
        return self._recent_entries >= FILE_ENTRIES or covered >= FILE_LOG_BYTES

    def write_file(self) -> None:
        """Put what is in memory into a file, together with the last one if that is small."""
        with self._building:
            self._write_file()

    def _write_file(self) -> None:
        if self._stretch.begin == self._stretch.end:
            return
        runs, stretch, replaced = list(self._recent), self._stretch, None
        last = self._index[-1] if self._index else None
        small = last is not None and last.entries < SMALL_FILE_ENTRIES
        if last is not None and small and last.entries + self._recent_entries <= FILE_ENTRIES:
            runs, stretch, replaced = [last.all(), *runs], last.stretch.joined(stretch), last
        entries = np.concatenate(runs) if runs else np.empty(0, dtype=ENTRY)
        written = index_file.write(self._files, stretch, entries)
        with self._lock:
            self._index = [*(self._index[:-1] if replaced else self._index), written]
            self._restart(stretch.end)
        if replaced is not None:
            self._files.remove(replaced.path)

    def forget_below(self, log_begin: int) -> None:
        """Remove the files whose stretch of the log is gone."""
        with self._building, self._lock:
            gone = [each for each in self._index if each.stretch.end <= log_begin]
            self._index = self._index[len(gone) :]
            if self.position < log_begin:
                self._restart(log_begin)
        for each in gone:
            self._files.remove(each.path)

    # --- finding ----------------------------------------------------------------------

    def find(self, query: KeyQuery) -> list[FrameSlice]:
        """Return the messages that a query asks for, newest first, each as a slice of one message."""
        key_hash = int(key_hashes(query.topic, pa.array([query.key], pa.binary()))[0])
        found: list[FrameSlice] = []
        for entries in self._runs(query, key_hash):
            newest_first = np.lexsort((entries["row"], entries["log_offset"]))[::-1]
            for log_offset, row in zip(
                entries["log_offset"][newest_first].tolist(),
                entries["row"][newest_first].tolist(),
                strict=True,
            ):
                piece = self._rechecked(query, log_offset, row)
                if piece is not None:
                    found.append(piece)
                    if len(found) >= query.limit:
                        return found
        return found

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
        with self._building:
            return self._rebuild(damaged)

    def _rebuild(self, damaged: IndexFile) -> IndexFile:
        current = next((each for each in self._index if each.path == damaged.path), damaged)
        if current is not damaged:
            return current
        begin = max(damaged.stretch.begin, self._log.begin)
        frames = self._log.keyed_frames(begin, damaged.stretch.end)
        runs = [entries_of(frame) for _, frame in frames if frame is not None]
        entries = np.concatenate(runs) if runs else np.empty(0, dtype=ENTRY)
        written = index_file.write(self._files, damaged.stretch, entries)
        with self._lock:
            self._index = [written if each is damaged else each for each in self._index]
        return written

    def _rechecked(self, query: KeyQuery, log_offset: int, row: int) -> FrameSlice | None:
        try:
            header = self._log.header(log_offset)
            if not query.begin_us <= header.stored_at_us <= query.end_us:
                return None
            frame = verify(pa.py_buffer(self._log.read(log_offset, header.size)))
        except SegmentGone:
            return None
        entry = self._published.state.topics.get(query.topic)
        if frame.topic != query.topic or entry is None:
            return None
        queue, offset = self._queues.get((entry.number, header.queue)), header.queue_offset + row
        if queue is None or not queue.min <= offset < queue.end:
            return None
        if int(queue.read(offset, 1)["log_offset"][0]) != log_offset:
            return None
        message = read_stored(frame.body).slice(row, 1)
        if query.key not in set(_keys(message)):
            return None
        return FrameSlice(header, offset, message)


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
    more, parents = _further_keys(batch)
    if len(more):
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


def _further_keys(batch: pa.RecordBatch) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the keys in the property KEYS and the row that each is of."""
    properties = batch.column("properties")
    if properties.null_count == len(properties):
        return pa.nulls(0, pa.string()), np.empty(0, dtype=np.int64)
    joined = pc.map_lookup(properties, pa.scalar(KEYS), "first")
    if joined.null_count == len(joined):
        return pa.nulls(0, pa.string()), np.empty(0, dtype=np.int64)
    lists = pc.utf8_split_whitespace(joined)
    return pc.list_flatten(lists), _numbers(pc.list_parent_indices(lists))


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return 64-bit numbers without nulls; `to_numpy` would load pandas into the broker."""
    return np.frombuffer(column.buffers()[1], dtype=np.int64, count=len(column), offset=8 * column.offset)


def _keys(message: pa.RecordBatch) -> Iterable[bytes]:
    key = message.column("key")[0].as_py()
    if key is not None:
        yield key
    more, _ = _further_keys(message)
    for each in more:
        yield each.as_py().encode()
