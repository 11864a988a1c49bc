"""Replaces a damaged part of the log by the bytes of another member.

The bytes have to prove two things. They are sound: each frame's checksum and log offset hold. And they are
*these* bytes: they reach one frame beyond the damage, and this frame is here too, byte for byte. It has one
epoch at one place, so both logs are equal before it (`epoch_lineage`).

What is written is what was there before the damage, at the same place. So a crash meanwhile leaves a part of
the damage, and nothing worse: healing is done again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketq_broker.store.disk.files import Files, OSFiles
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import ShipmentMisplaced
from rocketq_broker.store.log.commit_log import DIRECTORY, CommitLog
from rocketq_broker.store.log.sound_frames import sound_header
from rocketq_broker.store.recovery.salvage import end_of_damage, survey
from rocketq_broker.store.replica.raw_frames import RawFrames, extents_of, verified

_OPEN_FILES: Final = 16


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A part [begin, end) of the log without a sound frame; sound ones are at both sides."""

    begin: int
    end: int
    why: str

    @property
    def fetch_bytes(self) -> int:
        """How much to ask another member for: the part, and some of what follows it."""
        return self.end - self.begin + (1 << 20)


def damaged_ranges(log: CommitLog, end: int) -> tuple[DamagedRange, ...]:
    """Find the damaged parts below `end`; reads the whole log. What ends at `end` is cut off, not healed."""
    return tuple(DamagedRange(gap.at, gap.end, gap.why) for gap in survey(log) if gap.end < end)


def damaged_range(log: CommitLog, at: int, why: str, end: int) -> DamagedRange | None:
    """Return the damaged part that begins with the frame at `at`; None if it is sound, or reaches `end`."""
    if not log.begin <= at < end or sound_header(log, at) is not None:
        return None
    behind = end_of_damage(log, at)
    return DamagedRange(at, behind, why) if behind < end else None


def sound_until(log: CommitLog, at: int, size: int, end: int) -> int:
    """Follow the frames from `at` on over `size` bytes, or up to `end`; return where the next one begins.

    Raises CorruptFrame at damage, with its log offset.
    """
    position = at
    for frame in log.frames(at, end):
        position = frame.header.log_offset + frame.header.size
        if position - at >= size:
            break
    return position


def heal(files: Files, log: CommitLog, damage: DamagedRange, raw: RawFrames) -> None:
    """Write another member's bytes over a damaged part, durably.

    `raw` begins where the damage does. Raises CorruptFrame for bytes that are not sound, and
    ShipmentMisplaced for those that end too early, or are not what this log had. Then nothing is written.
    """
    frames = verified(raw)
    witness = next((each.header for each in frames if each.header.log_offset == damage.end), None)
    if raw.at != damage.begin or witness is None:
        why = f"they do not have the frame behind the damage, which ends at {damage.end}"
        raise ShipmentMisplaced(raw.at, damage.begin, why)
    data = b"".join(raw.parts)
    size = damage.end - damage.begin
    if bytes(log.read(damage.end, witness.size)) != data[size : size + witness.size]:
        why = f"the frame behind the damage, at {damage.end}, is another one here"
        raise ShipmentMisplaced(raw.at, damage.begin, why)
    borders = tuple(each for each in raw.segments if each < damage.end)
    _check_borders(log, damage, borders)
    own = RawFrames(raw.at, [data[:size]], borders)
    for extent in extents_of(own, log.segment_of(damage.begin)):
        file = files.open(CommitLog.path(extent.segment), create=True)
        file.write(extent.parts, extent.at - extent.segment)
        file.sync()
    files.sync_directory(DIRECTORY)


def _check_borders(log: CommitLog, damage: DamagedRange, borders: tuple[int, ...]) -> None:
    """Raise ShipmentMisplaced if the other member's segments do not fit the files that are here."""
    here = {start for start in log.starts if damage.begin <= start < damage.end}
    within = [
        border for border in borders for start in log.starts if start < border < start + log.size_of(start)
    ]
    if within or not here.issubset(borders):
        why = f"segments begin at {list(borders)} there, and at {sorted(here)} here"
        raise ShipmentMisplaced(damage.begin, damage.begin, why)


class ClosedLog:
    """The log of a store that does not open for its damage (CorruptLog, MissingSegment)."""

    def __init__(self, files: Files) -> None:
        """Look at the log; the caller holds the directory's lock."""
        self._files = files
        self._log = CommitLog(files, Handles(files, _OPEN_FILES))

    def damages(self) -> tuple[DamagedRange, ...]:
        """Find the damaged parts; reads the whole log."""
        return damaged_ranges(self._log, self._log.end)

    def heal(self, damage: DamagedRange, raw: RawFrames) -> None:
        """Write another member's bytes over a damaged part, durably; raises as `heal` does."""
        heal(self._files, self._log, damage, raw)
        # A segment may be there now that was missing.
        self._log = CommitLog(self._files, Handles(self._files, _OPEN_FILES))


@contextmanager
def closed_log(directory: Path) -> Iterator[ClosedLog]:
    """Lock the directory of a store that does not run; raise StoreLocked."""
    files = OSFiles(directory)
    files.lock()
    try:
        yield ClosedLog(files)
    finally:
        files.unlock()
