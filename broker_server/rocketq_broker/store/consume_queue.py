"""The consume queue: for one MessageQueue, where each message lies in the log.

    | log offset: u64 | frame size: u32 | tag hash: u64 |    20 bytes, little-endian

Invariants:
  * unit i describes queue offset i, so a lookup is one multiplication;
  * all messages of a frame share its log offset and size;
  * log offsets never decrease from unit to unit.

Units lie in files of a fixed number of units, named by the first one's byte
position. A queue whose older messages were removed begins inside its first
file; what lies before is a hole. The files are derived data without checksums:
recovery cuts them back to what the snapshot vouches for and writes the rest
anew from the log.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rocketq_broker.store.errors import CorruptQueue
from rocketq_broker.store.files import Files
from rocketq_broker.store.handles import Handles

UNIT: Final = np.dtype([("log_offset", "<u8"), ("size", "<u4"), ("tag_hash", "<u8")])
UNIT_BYTES: Final = 20
_RUN_UNITS: Final = 1 << 15

Units = npt.NDArray[np.void]


def units(log_offset: int, size: int, tag_hashes: npt.NDArray[np.uint64]) -> Units:
    """Return one unit for each message of a frame."""
    made = np.empty(tag_hashes.size, dtype=UNIT)
    made["log_offset"] = log_offset
    made["size"] = size
    made["tag_hash"] = tag_hashes
    return made


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
        self.min = 0
        self.end = 0
        #: The next offset to be given out: units below it are written, those below `end` may be read.
        self.tail = 0

    def _path(self, file_index: int) -> str:
        return f"{self._directory}/{file_index * self._file_units * UNIT_BYTES:020d}"

    def write(self, first: int, made: Units) -> None:
        """Write units from queue offset `first` on; they may be read once `end` is moved."""
        if not self._made:
            self._files.make_directory(self._directory)
            self._made = True
        done = 0
        while done < made.size:
            index, within = divmod(first + done, self._file_units)
            some = made[done : done + self._file_units - within]
            path = self._path(index)
            self._handles.get(path, create=True).write([some.tobytes()], within * UNIT_BYTES)
            self._dirty.add(path)
            done += some.size

    def read(self, first: int, count: int) -> Units:
        """Read up to `count` units from `first`, within one file; the caller keeps to [min, end).

        Raises CorruptQueue if they are not all there.
        """
        index, within = divmod(first, self._file_units)
        count = min(count, self._file_units - within)
        data = self._handles.get(self._path(index)).read(count * UNIT_BYTES, within * UNIT_BYTES)
        if len(data) < count * UNIT_BYTES:
            raise self.corrupt(first, f"its file ends after {len(data) // UNIT_BYTES} of {count} units")
        return np.frombuffer(data, dtype=UNIT)

    def corrupt(self, offset: int, why: str) -> CorruptQueue:
        return CorruptQueue(self._directory, offset, why)

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
            run = self.read(first, at - first)
            places = run["log_offset"]
            closes_frame = np.append(places[1:] != places[:-1], int(places[-1]) != following)
            sizes = np.where(closes_frame, run["size"], 0).astype(np.int64)
            from_here = kept + np.cumsum(sizes[::-1])[::-1]
            over = np.flatnonzero(from_here > bytes_max)
            if over.size:
                return first + int(over[-1]) + 1
            kept, at, following = int(from_here[0]), first, int(places[0])
        return self.min

    def raise_min(self, low: int) -> None:
        """Give up what lies below queue offset `low`, with the files that held only that."""
        if low <= self.min:
            return
        first_kept = min(low, max(self.end - 1, 0)) // self._file_units
        self.min = low
        for name in self._files.list(self._directory):
            if int(name) // (self._file_units * UNIT_BYTES) < first_kept:
                path = f"{self._directory}/{name}"
                self._handles.forget(path)
                self._files.remove(path)

    def reset(self, low: int, end: int) -> None:
        """Make the readable range [low, end), and cut the files to it."""
        self.min, self.end, self.tail = low, end, end
        last, within = divmod(end, self._file_units)
        for name in self._files.list(self._directory):
            index = int(name) // (self._file_units * UNIT_BYTES)
            path = f"{self._directory}/{name}"
            if index > last or (index == last and within == 0):
                self._handles.forget(path)
                self._files.remove(path)
            elif index == last:
                file = self._handles.get(path)
                if file.size() > within * UNIT_BYTES:
                    file.truncate(within * UNIT_BYTES)
        self._made = self._files.exists(self._directory)

    def holds_files_for(self, low: int, end: int) -> bool:
        """Whether the files are there and long enough for [low, end)."""
        if low == end:
            return True
        last, within = divmod(end - 1, self._file_units)
        for index in range(low // self._file_units, last + 1):
            path = self._path(index)
            if not self._files.exists(path):
                return False
            need = within + 1 if index == last else self._file_units
            if self._handles.get(path).size() < need * UNIT_BYTES:
                return False
        return True

    def remove(self) -> None:
        """Remove all files of the queue."""
        for name in self._files.list(self._directory):
            path = f"{self._directory}/{name}"
            self._handles.forget(path)
            self._files.remove(path)
        self._files.remove(self._directory)
        self._made = False
