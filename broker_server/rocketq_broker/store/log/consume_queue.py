"""The consume queue: for one MessageQueue, where each message lies in the log.

    | log offset: u64 | frame size: u32 | tag hash: u64 |    20 bytes, little-endian

Invariants:
  * unit i describes queue offset i, so a lookup is one multiplication;
  * all messages of a frame share its log offset and size;
  * log offsets never decrease from unit to unit.

Units lie in files of a fixed number of units, named by the first one's byte
position. A queue whose older messages were removed begins inside its first
file; what lies before is a hole.

A file is checked in blocks of `BLOCK_UNITS` units. When the writer completes a block,
it puts the block's CRC-32C into the file `<name>.crc`. The units behind the
last complete block are the *open block*: its checksum is in memory and in the snapshot.
`read` returns no unit whose block does not match its checksum, so a reader
never follows, nor passes over, a damaged unit; it gets CorruptQueue, and
`queue_repair` builds the block again from the log.

The files are derived data: recovery cuts them back to what the snapshot vouches for
and writes the rest anew from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import CorruptQueue

UNIT: Final = np.dtype([("log_offset", "<u8"), ("size", "<u4"), ("tag_hash", "<u8")])
UNIT_BYTES: Final = 20
_ONE_UNIT: Final = struct.Struct("<QIQ")
#: Units under one checksum; the last block of a file may have fewer.
BLOCK_UNITS: Final = 512
#: A file's checksums: one u32 a block, little-endian.
CRC_SUFFIX: Final = ".crc"
_CRC: Final = np.dtype("<u4")
_RUN_UNITS: Final = 1 << 15

Units = npt.NDArray[np.void]


def units(log_offset: int, size: int, tag_hashes: npt.NDArray[np.uint64]) -> Units:
    """Return one unit for each message of a frame."""
    if tag_hashes.size == 1:
        # A message that comes alone pays for every call into numpy by itself.
        return np.frombuffer(_ONE_UNIT.pack(log_offset, size, int(tag_hashes[0])), UNIT)
    made = np.empty(tag_hashes.size, dtype=UNIT)
    made["log_offset"] = log_offset
    made["size"] = size
    made["tag_hash"] = tag_hashes
    return made


class OpenBlock(NamedTuple):
    """The units [first, end) of the block that is not complete yet, and their CRC-32C."""

    first: int
    end: int
    crc: int


class ConsumeQueue:
    """The unit files of one queue, and the range [min, end) that may be read.

    `end` moves only when the messages below it are as safe as the flush mode
    promises, so it is the queue's confirm offset. One thread writes; any reads.
    The paths of files that were written are added to `dirty`, for the snapshot
    to sync.
    """

    def __init__(
        self, files: Files, handles: Handles, directory: str, file_units: int, dirty: set[str]
    ) -> None:
        self._files = files
        self._handles = handles
        self._directory = directory
        self.id = int(directory.rpartition("/")[2])
        self._file_units = file_units
        self._made = False
        self._dirty = dirty
        #: What the log writer has written, which readers may not see yet; it gives out `written.end` next.
        self.written_block = OpenBlock(0, 0, 0)
        #: What readers check the last units against; replaced by `advance`.
        self.open_block = self.written_block
        self.min = 0
        self.end = 0

    def _path(self, file_index: int) -> str:
        return f"{self._directory}/{file_index * self._file_units * UNIT_BYTES:020d}"

    def _block(self, offset: int) -> tuple[int, int]:
        """Return the queue offsets [first, end) of the block that holds the unit of `offset`."""
        index, within = divmod(offset, self._file_units)
        first = within // BLOCK_UNITS * BLOCK_UNITS
        base = index * self._file_units
        return base + first, base + min(first + BLOCK_UNITS, self._file_units)

    # --- writing ----------------------------------------------------------------------

    def write(self, made: Units) -> OpenBlock:
        """Write units behind `written`, and return what that becomes with them.

        If the caller does not set it, because the log could not be written, the next write takes their
        place. Readers see the units after `advance`.
        """
        if not self._made:
            self._files.make_directory(self._directory)
            self._made = True
        block = self.written_block
        done = 0
        while done < made.size:
            index, within = divmod(block.end, self._file_units)
            some = made[done : done + self._file_units - within].tobytes()
            path = self._path(index)
            self._put(path, some, within * UNIT_BYTES)
            crcs, first = [], block.first
            for part in self._by_blocks(block.end, some):
                end = block.end + len(part) // UNIT_BYTES
                block = OpenBlock(block.first, end, google_crc32c.extend(block.crc, part))
                if block.end == self._block(block.first)[1]:
                    crcs.append(block.crc)
                    block = OpenBlock(block.end, block.end, 0)
            self._put_crcs(first, crcs)
            done += len(some) // UNIT_BYTES
        return block

    def advance(self, block: OpenBlock) -> None:
        """Let readers see the units up to `block.end`; `block` is what a `write` returned."""
        # In this order: who sees the new end must find the checksum that reaches as far.
        self.open_block = block
        self.end = block.end

    def restore(self, first: int, made: Units, before: OpenBlock) -> None:
        """Replace the units of the block at `first` by those that the log gave; `before` is the
        open block that `damaged` returned.

        The caller keeps the writer away. If the open block has grown meanwhile, its checksum stays as it is.
        """
        data = made.tobytes()
        index, within = divmod(first, self._file_units)
        self._put(self._path(index), data, within * UNIT_BYTES)
        crc = google_crc32c.value(data)
        if first != before.first:
            self._put_crcs(first, [crc])
        elif self.open_block == before == self.written_block:
            self.open_block = self.written_block = before._replace(crc=crc)

    def _put(self, path: str, data: bytes, at: int) -> None:
        self._handles.get(path, create=True).write([data], at)
        self._dirty.add(path)

    def _put_crcs(self, first: int, crcs: list[int]) -> None:
        """Write the checksums of complete blocks, the first of which begins at queue offset `first`."""
        if crcs:
            index, within = divmod(first, self._file_units)
            at = within // BLOCK_UNITS * _CRC.itemsize
            self._put(self._path(index) + CRC_SUFFIX, np.array(crcs, dtype=_CRC).tobytes(), at)

    def _by_blocks(self, first: int, data: bytes) -> Iterator[bytes]:
        """Cut the bytes of units from queue offset `first` on where blocks end."""
        at = 0
        while at < len(data):
            room = (self._block(first)[1] - first) * UNIT_BYTES
            yield data[at : at + room]
            first, at = first + room // UNIT_BYTES, at + room

    # --- reading ----------------------------------------------------------------------

    def read(self, first: int, count: int) -> Units:
        """Read up to `count` units from `first`, within one file; the caller keeps to [min, end).

        Returns fewer, but at least one, if a later block is damaged. Raises CorruptQueue if the block of
        the first one is, and FileNotFoundError if retention removed it meanwhile.
        """
        block = self.open_block
        stop = first + min(count, self._file_units - first % self._file_units)
        begin, end = self._block(first)[0], min(self._block(stop - 1)[1], block.end)
        try:
            data, crcs = self._raw(begin, end), self._crcs(begin, end, block)
        except FileNotFoundError:
            if first < self.min:
                raise
            raise self.corrupt(first, "its file is missing") from None
        sound = begin
        block_bytes = BLOCK_UNITS * UNIT_BYTES
        # `data` begins with a block, and only its last one can be shorter than the others.
        for at, crc in zip(range(0, len(data), block_bytes), crcs, strict=False):
            part = data[at : at + block_bytes]
            if google_crc32c.value(part) != crc:
                break
            sound += len(part) // UNIT_BYTES
        if sound <= first:
            raise self.corrupt(first, "its block does not match the block's checksum")
        return np.frombuffer(data, dtype=UNIT, count=min(stop, sound) - begin)[first - begin :]

    def _raw(self, first: int, end: int) -> bytes:
        index, within = divmod(first, self._file_units)
        return bytes(self._handles.read(self._path(index), (end - first) * UNIT_BYTES, within * UNIT_BYTES))

    def _crcs(self, begin: int, end: int, block: OpenBlock) -> list[int]:
        """Return the checksums of the blocks in [begin, end), which lie in one file."""
        found: list[int] = []
        complete = min(end, block.first)
        if begin < complete:
            index, within = divmod(begin, self._file_units)
            blocks = -(-(complete - begin) // BLOCK_UNITS)
            path, at = self._path(index) + CRC_SUFFIX, within // BLOCK_UNITS * _CRC.itemsize
            data = self._handles.read(path, blocks * _CRC.itemsize, at)
            found = np.frombuffer(data[: len(data) & ~3], dtype=_CRC).tolist()
            if len(found) < blocks:
                return found
        return [*found, block.crc] if block.first < end else found

    def damaged(self, offset: int) -> tuple[int, Units, OpenBlock]:
        """Return the first offset of a block, its units as they are in the file, and the open block.

        Units that the file does not have are zeros.
        """
        block = self.open_block
        first, end = self._block(offset)
        end = min(end, block.end)
        found = np.zeros(end - first, dtype=UNIT)
        try:
            data = self._raw(first, end)
        except FileNotFoundError:
            data = b""
        found[: len(data) // UNIT_BYTES] = np.frombuffer(data[: len(data) // UNIT_BYTES * UNIT_BYTES], UNIT)
        return first, found, block

    def matches(self, first: int, made: Units, block: OpenBlock) -> bool:
        """Whether units have the checksum of the block at `first`."""
        try:
            return self._crcs(first, first + made.size, block) == [google_crc32c.value(made.tobytes())]
        except FileNotFoundError:
            return False

    def corrupt(self, offset: int, why: str) -> CorruptQueue:
        return CorruptQueue(self._directory, offset, why, self._block(offset)[0])

    def first_at(self, log_offset: int) -> int:
        """Return the first queue offset in [min, end) whose frame lies at or past `log_offset`, else end."""
        first, last = self.min, self.end
        if first == last or int(self.read(first, 1)["log_offset"][0]) >= log_offset:
            return first
        while first < last:
            middle = (first + last) // 2
            if int(self.read(middle, 1)["log_offset"][0]) < log_offset:
                first = middle + 1
            else:
                last = middle
        return first

    def first_within(self, bytes_max: int) -> int:
        """Return the first queue offset of the frames at the end that together fit `bytes_max`."""
        kept, at, following = 0, self.end, -1
        while at > self.min:
            first = max(self.min, (at - 1) // self._file_units * self._file_units, at - _RUN_UNITS)
            run = self._read_whole(first, at)
            places = run["log_offset"]
            closes_frame = np.append(places[1:] != places[:-1], int(places[-1]) != following)
            sizes = np.where(closes_frame, run["size"], 0).astype(np.int64)
            from_here = kept + np.cumsum(sizes[::-1])[::-1]
            over = np.flatnonzero(from_here > bytes_max)
            if over.size:
                return first + int(over[-1]) + 1
            kept, at, following = int(from_here[0]), first, int(places[0])
        return self.min

    def _read_whole(self, first: int, end: int) -> Units:
        """Read the units [first, end), which lie in one file; raise CorruptQueue."""
        found = self.read(first, end - first)
        if found.size < end - first:
            self.read(first + found.size, 1)
        return found

    def raise_min(self, low: int) -> None:
        """Give up what lies below queue offset `low`, with the files that held only that."""
        if low <= self.min:
            return
        first_kept = min(low, max(self.end - 1, 0)) // self._file_units
        self.min = low
        for name in self._files.list(self._directory):
            if self._file_of(name) < first_kept:
                path = f"{self._directory}/{name}"
                self._handles.forget(path)
                self._files.remove(path)

    def _file_of(self, name: str) -> int:
        """Return the number of the file that a name in the directory is of."""
        return int(name.removesuffix(CRC_SUFFIX)) // (self._file_units * UNIT_BYTES)

    def reset(self, low: int, end: int, open_block_crc: int | None = None) -> None:
        """Make the readable range [low, end), and cut the files to it.

        Without the checksum of the open block the queue has no files: what precedes `end` is a hole.
        """
        self.min, self.end = low, end
        first = self._block(end)[0]
        if open_block_crc is None:
            open_block_crc = google_crc32c.value(bytes((end - first) * UNIT_BYTES))
        self.open_block = self.written_block = OpenBlock(first, end, open_block_crc)
        last, within = divmod(end, self._file_units)
        for name in self._files.list(self._directory):
            index = self._file_of(name)
            path = f"{self._directory}/{name}"
            size = within * UNIT_BYTES
            if name.endswith(CRC_SUFFIX):
                size = within // BLOCK_UNITS * _CRC.itemsize
            if index > last or (index == last and within == 0):
                self._handles.forget(path)
                self._files.remove(path)
            elif index == last:
                file = self._handles.get(path)
                if file.size() > size:
                    file.truncate(size)
        self._made = self._files.exists(self._directory)

    def holds_files_for(self, low: int, end: int) -> bool:
        """Whether the files are there and long enough for [low, end)."""
        if low == end:
            return True
        last, within = divmod(end - 1, self._file_units)
        for index in range(low // self._file_units, last + 1):
            path = self._path(index)
            need = within + 1 if index == last else self._file_units
            whole = need // BLOCK_UNITS if need < self._file_units else -(-need // BLOCK_UNITS)
            for name, size in ((path, need * UNIT_BYTES), (path + CRC_SUFFIX, whole * _CRC.itemsize)):
                if size and not self._holds(name, size):
                    return False
        return True

    def _holds(self, path: str, size: int) -> bool:
        return self._files.exists(path) and self._handles.get(path).size() >= size

    def remove(self) -> None:
        """Remove all files of the queue."""
        for name in self._files.list(self._directory):
            path = f"{self._directory}/{name}"
            self._handles.forget(path)
            self._files.remove(path)
        self._files.remove(self._directory)
        self._made = False
