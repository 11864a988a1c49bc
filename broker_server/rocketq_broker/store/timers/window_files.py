"""The files of the timer index: one for each window of due time, with an entry for each due time of each
frame.

Entries are appended in the order of the log. A file is derived data: the snapshot has its *mark*, how many
entries it has and the CRC-32C of them, and a start cuts the file back to its mark and writes the rest again
from the log. A file that does not match its mark is damaged; the index then reads the window's entries from
the log.

Directory `timers`, and the window's number in 20 digits. A window is `WINDOW_MS` of due time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from rocketq_broker.store.disk.files import Data, Files
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.machines.timer_table import WINDOW_MS
from rocketq_broker.store.timers.entries import ENTRY, ENTRY_BYTES, Entries, by_window, joined

DIRECTORY: Final = "timers"
#: Entries that are read at once.
CHUNK_ENTRIES: Final = 1 << 18


class WindowMark(NamedTuple):
    """How many entries a window's file has, and their CRC-32C."""

    entries: int
    crc: int


WindowMarks = dict[int, WindowMark]
NO_MARK: Final = WindowMark(0, 0)


class WindowFiles:
    """The files of all windows. The log writer, or replay, writes; any thread reads what is marked."""

    def __init__(self, files: Files, handles: Handles) -> None:
        self._files = files
        self._handles = handles
        self._made = False
        #: Files written since the last snapshot synced them.
        self.dirty: set[str] = set()

    @staticmethod
    def path(window: int) -> str:
        return f"{DIRECTORY}/{window:020d}"

    def write(self, marks: Mapping[int, WindowMark], frames: Sequence[Entries]) -> WindowMarks:
        """Write the entries of frames behind the marks; return the new marks of their windows."""
        if not self._made:
            self._files.make_directory(DIRECTORY)
            self._made = True
        windows: dict[int, list[Entries]] = {}
        for entries in frames:
            for window, own in by_window(entries).items():
                windows.setdefault(window, []).append(own)
        made: WindowMarks = {}
        for window, parts in windows.items():
            mark = marks.get(window, NO_MARK)
            some = joined(parts)
            data = some.tobytes()
            path = self.path(window)
            self._handles.get(path, create=True).write([data], mark.entries * ENTRY_BYTES)
            self.dirty.add(path)
            made[window] = WindowMark(mark.entries + some.size, google_crc32c.extend(mark.crc, data))
        return made

    def is_sound(self, window: int, mark: WindowMark) -> bool:
        """Whether a window's file has what its mark says. This reads the file, which is read again then.

        Raises FileNotFoundError if it is not there.
        """
        crc = 0
        for first in range(0, mark.entries, CHUNK_ENTRIES):
            crc = google_crc32c.extend(crc, self._chunk(window, mark, first))
        return crc == mark.crc

    def read(self, window: int, mark: WindowMark) -> Iterator[Entries]:
        """Yield a window's entries in chunks, in the order of the log; the file is sound."""
        for first in range(0, mark.entries, CHUNK_ENTRIES):
            yield np.frombuffer(self._chunk(window, mark, first), ENTRY)

    def _chunk(self, window: int, mark: WindowMark, first: int) -> Data:
        count = min(CHUNK_ENTRIES, mark.entries - first)
        return self._handles.read(self.path(window), count * ENTRY_BYTES, first * ENTRY_BYTES)

    def within(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Entries]:
        """Yield what the files say of frames in these ranges [at, end) of the log, whatever their marks.

        An entry that cannot be true is passed over: bytes behind a mark may be of a former life.
        """
        for name in self._files.list(DIRECTORY):
            size = self._handles.get(f"{DIRECTORY}/{name}").size() if name.isdigit() else 0
            whole = WindowMark(size // ENTRY_BYTES, 0)
            for found in self.read(int(name), whole) if whole.entries else ():
                ends = found["log_offset"] + found["size"]
                is_there = np.zeros(found.size, np.bool_)
                for at, end in ranges:
                    is_there |= (found["log_offset"] >= at) & (ends <= end)
                yield found[is_there & (found["due_ms"] // WINDOW_MS == int(name))]

    def reset(self, marks: Mapping[int, WindowMark]) -> None:
        """Remove the files without a mark, so that nothing of a former life is left in them."""
        for name in self._files.list(DIRECTORY):
            if not name.isdigit() or int(name) not in marks:
                self._files.remove(f"{DIRECTORY}/{name}")

    def remove(self, window: int) -> None:
        """Remove the file of a window that is over."""
        path = self.path(window)
        self._handles.forget(path)
        self._files.remove(path)
        self.dirty.discard(path)
