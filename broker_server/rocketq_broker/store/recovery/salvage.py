"""Makes a damaged log usable again, at the explicit wish of an operator, and reports what was lost.

Salvage overwrites every range of the log that has no sound frame with *lost* frames: sound frames that mark
lost data. Nothing moves, so every message that survived keeps its offset. The offsets of lost messages stay
empty, and a pull passes over them. Before salvage overwrites a range, it copies it to `salvage/<log offset>`.
A missing segment is replaced by a segment of lost frames. The state frame at the begin of the next segment
restores topics and group offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import HEADER_BYTES, FrameHeader, FrameKind, encode, peek
from rocketq.protocol.sizes import FRAME_BYTES_MAX
from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.index.index_file import DIRECTORY as INDEX_DIRECTORY
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.log.sound_frames import sound_frames_behind, sound_header
from rocketq_broker.store.machines.machine import CopyName
from rocketq_broker.store.machines.timer_table import TimerTable
from rocketq_broker.store.machines.transaction_table import transaction_of
from rocketq_broker.store.recovery.recovery import Recovery, RecoveryReport
from rocketq_broker.store.timers.entries import NO_ENTRIES, Entries, behind, joined
from rocketq_broker.store.timers.timer_index import TimerIndex
from rocketq_broker.store.timers.window_files import WindowFiles

DIRECTORY: Final = "salvage"
_COPY_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Gap:
    """A range [at, end) of the log without a sound frame; `claims` is what its header says, if readable."""

    segment: int
    at: int
    end: int
    why: str
    claims: str
    #: Store time of the last sound frame before it; lost frames must not seem older than that.
    stored_at_us: int = 0

    @property
    def size(self) -> int:
        return self.end - self.at


@dataclass(frozen=True, slots=True)
class LostRange:
    """Messages [first, end) of one queue that are gone."""

    topic: str
    queue: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LostStaged:
    """Staged frames that are gone, of a batch that is decided or still may be."""

    sink: str
    batch: int
    run: str
    is_decided: bool
    frames: int


@dataclass(frozen=True, slots=True)
class LostHalf:
    """Half frames that are gone, of a transaction that is committed or is undecided.

    `frames` is 0 if the transaction was open when the gap was written and nothing tells whether the gap had
    frames of it. An undecided transaction cannot be committed any more. If its begin is lost, `group` is
    empty, `transaction` is its number in the log, and `frames` are those that are left, for nobody.
    """

    group: str
    transaction: str
    is_committed: bool
    frames: int


@dataclass(frozen=True, slots=True)
class LostDelayed:
    """Delayed messages of one queue that are gone and were not delivered, due between these times."""

    topic: str
    queue: int
    messages: int
    first_due_ms: int
    last_due_ms: int


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """What was damaged and what it cost; `recovery` is None if nothing was changed."""

    gaps: tuple[Gap, ...]
    lost: tuple[LostRange, ...]
    recovery: RecoveryReport | None
    staged: tuple[LostStaged, ...] = ()
    transactions: tuple[LostHalf, ...] = ()
    delayed: tuple[LostDelayed, ...] = ()


def survey(log: CommitLog) -> list[Gap]:
    """Find every gap of the log, changing nothing."""
    gaps: list[Gap] = []
    at = log.begin
    stored_at_us = 0
    for start in log.starts:
        if start > at:
            gaps.append(Gap(at, at, start, "the segment's file is missing", "", stored_at_us))
        at, stop = start, start + log.size_of(start)
        while at < stop:
            header = sound_header(log, at)
            if header is not None:
                at += header.size
                stored_at_us = max(stored_at_us, header.stored_at_us)
                continue
            why, claims = _diagnosis(log, at)
            gaps.append(Gap(start, at, end_of_damage(log, at), why, claims, stored_at_us))
            at = gaps[-1].end
    return gaps


def end_of_damage(log: CommitLog, at: int) -> int:
    """Return where sound frames begin again behind a damaged one; at the latest where its segment ends."""
    start = log.segment_of(at)
    stop = start + log.size_of(start)
    return min(next((each.log_offset for each in sound_frames_behind(log, at)), stop), stop)


def _diagnosis(log: CommitLog, at: int) -> tuple[str, str]:
    try:
        header = peek(log.read(at, HEADER_BYTES))
    except CorruptFrame as error:
        return str(error.facts["why"]), ""
    return "the checksum does not hold", _claims(header)


def _claims(header: FrameHeader) -> str:
    if header.kind == FrameKind.STAGED:
        return f"{header.count} staged messages for queue {header.queue}, stage {header.queue_offset}"
    if header.kind == FrameKind.HALF:
        return f"{header.count} half messages for queue {header.queue}, transaction {header.queue_offset}"
    if header.kind == FrameKind.DELAYED:
        return f"{header.count} delayed messages for queue {header.queue}"
    if header.kind != FrameKind.MESSAGES:
        return f"a frame of kind {header.kind}"
    return f"queue {header.queue}, offsets {header.queue_offset} to {header.next_queue_offset - 1}"


def salvage(files: Files, broker_units: int, open_max: int) -> SalvageReport:
    """Overwrite every gap with lost frames and rebuild everything else from the log.

    The caller holds the directory's lock. Raises OSError if the disk fails meanwhile; salvage can
    then be run again.
    """
    handles = Handles(files, open_max)
    log = CommitLog(files, handles)
    gaps = survey(log)
    if not gaps:
        return SalvageReport((), (), None)
    files.make_directory(DIRECTORY)
    for gap in gaps:
        _keep_copy(files, log, gap)
        _overwrite(files, gap)
    handles.close()
    delayed = list(WindowFiles(files, handles).within([(gap.at, gap.end) for gap in gaps]))
    handles.close()
    log = CommitLog(files, handles)
    queues = Queues(files, handles, broker_units)
    # The snapshot says that data is there which is lost now.
    files.remove("state/snapshot")
    # The key index is built anew, so that it knows where the lost frames are.
    for name in files.list(INDEX_DIRECTORY):
        files.remove(f"{INDEX_DIRECTORY}/{name}")
    timers = TimerIndex(WindowFiles(files, handles), log)
    recovery = Recovery(files, log, queues, timers)
    report = recovery.run(clean=False)
    names = {entry.number: name for name, entry in recovery.replay.state.topics.items()}
    lost = tuple(
        LostRange(names[number], queue, first, end)
        for (number, queue), first, end in recovery.replay.lost
        if number in names
    )
    handles.close()
    held = list(_lost_held(recovery, gaps))
    staged = tuple(each for each in held if isinstance(each, LostStaged))
    transactions = tuple(each for each in held if isinstance(each, LostHalf))
    state = recovery.replay.state
    lost_delayed = tuple(_lost_delayed(delayed, state.timers, names))
    return SalvageReport(tuple(gaps), lost, report, staged, transactions, lost_delayed)


def _lost_held(recovery: Recovery, gaps: Sequence[Gap]) -> Iterator[LostStaged | LostHalf]:
    """Yield what of each stage, publication and transaction lies in a gap.

    It does not list frames of an undecided stage of which only the lost frames themselves knew. A commit that
    names such a frame is refused.
    """
    damaged = {each.name for each in recovery.replay.state.transactions.open.values() if each.is_damaged}
    for name, count in recovery.replay.lost_copies.items():
        yield _lost(name, True, count)
    for each in recovery.replay.state.holdings():
        lost = [one for one in each.frames if any(gap.at <= one.log_offset < gap.end for gap in gaps)]
        if lost:
            yield _lost(each.name, each.is_decided, len(lost))
        elif each.name in damaged:
            yield _lost(each.name, False, 0)
    for number, count in recovery.replay.lost_begins.items():
        yield LostHalf("", str(number), False, count)


def _lost_delayed(
    found: Sequence[Entries], table: TimerTable, names: Mapping[int, str]
) -> Iterator[LostDelayed]:
    """Yield what lost frames had ahead of the cursor, queue by queue, as the timer index knew it."""
    entries = behind(np.unique(joined([NO_ENTRIES, *found])), table.cursor)
    for number, queue in np.unique(entries[["topic", "queue"]]).tolist():
        own = entries[(entries["topic"] == number) & (entries["queue"] == queue)]
        if number in names:
            due = own["due_ms"]
            yield LostDelayed(names[number], queue, int(own["count"].sum()), int(due.min()), int(due.max()))


def _lost(name: CopyName, is_decided: bool, frames: int) -> LostStaged | LostHalf:
    transaction = transaction_of(name)
    if transaction is not None:
        return LostHalf(*transaction, is_decided, frames)
    return LostStaged(*name, is_decided, frames)


def _keep_copy(files: Files, log: CommitLog, gap: Gap) -> None:
    if gap.segment not in log.starts:
        return
    copy = files.open(f"{DIRECTORY}/{gap.at:020d}", create=True)
    for at in range(gap.at, gap.end, _COPY_BYTES):
        copy.write([log.read(at, min(_COPY_BYTES, gap.end - at))], at - gap.at)
    copy.sync()
    files.sync_directory(DIRECTORY)


def _overwrite(files: Files, gap: Gap) -> None:
    """Fill a gap; one too small for a frame can only be a torn tail, and is cut off."""
    file = files.open(CommitLog.path(gap.segment), create=True)
    size = gap.size & ~7
    at = gap.at
    while size >= HEADER_BYTES:
        # The rest must be large enough for a frame of its own.
        piece = size if size <= FRAME_BYTES_MAX else FRAME_BYTES_MAX // 2
        parts = encode(
            kind=FrameKind.LOST, topic=b"", body=pa.py_buffer(bytes(piece - HEADER_BYTES)),
            log_offset=at, stored_at_us=gap.stored_at_us, durable_end=at,
        )  # fmt: skip
        file.write(parts, at - gap.segment)
        at, size = at + piece, size - piece
    if at < gap.end:
        file.truncate(at - gap.segment)
    file.sync()
    files.sync_directory("commitlog")
