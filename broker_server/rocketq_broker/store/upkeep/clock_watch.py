"""Holds the wall clock against the machine's own count of time, and remembers what is doubted.

    state/clock     the `ClockRecord` as JSON; written aside, synced and renamed when it changes

`check` is called before anything is deleted by age. What is doubted stays so through a restart of the
broker, and of the machine. Without the file (the first start, or somebody removed it) the newest store
time of the log stands for when time was last seen to pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from rocketq.clock import Clock
from rocketq.errors import Conflict
from rocketq_broker.store.disk.files import FULL_ERRORS, Files
from rocketq_broker.store.state.snapshot import DIRECTORY
from rocketq_broker.store.upkeep import clock_trust
from rocketq_broker.store.upkeep.clock_trust import ClockRecord, Doubt, Reading

PATH: Final = f"{DIRECTORY}/clock"
_ASIDE: Final = f"{DIRECTORY}/clock.new"
#: An operator's clock may differ by this from the one it is to confirm.
AGREED_WITHIN_US: Final = 3600 * 1_000_000
_ONE_MOMENT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ClockNotice:
    """What an operator should know of the clock: a level and an event for the log, a sentence, facts."""

    level: str
    event: str
    message: str
    facts: dict[str, Any]


class ClockWatch:
    """The record of one store. Any thread may call it."""

    def __init__(
        self, files: Files, clock: Clock, newest_us: int, on_notice: Callable[[ClockNotice], None]
    ) -> None:
        """Go on with the record of the last life; `newest_us` is the newest store time, 0 without a log."""
        self._files = files
        self._clock = clock
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._is_saved = False
        before = _read(files)
        self._record = clock_trust.resume(before, self._reading(), newest_us)
        self._is_saved = self._record == before
        if self._record.doubt:
            on_notice(_notice(self._record))
        self._save()

    @property
    def record(self) -> ClockRecord:
        return self._record

    def check(self) -> int | None:
        """Return the time (µs) by which messages may be deleted for their age; None: by no time now."""
        with self._lock:
            now = self._reading()
            self._set_record(clock_trust.observe(self._record, now))
            return None if self._record.doubt else now.wall_us

    def is_doubted(self) -> bool:
        """Whether the wall clock is not believed at this moment; changes nothing."""
        return clock_trust.observe(self._record, self._reading()).doubt is not Doubt.NONE

    def agree(self, at_us: int) -> None:
        """Believe the wall clock from now on, if it shows about `at_us`; raise Conflict if it does not."""
        with self._lock:
            now = self._reading()
            if abs(now.wall_us - at_us) > AGREED_WITHIN_US:
                raise Conflict(
                    "the clock",
                    f"this broker's shows {_text(now.wall_us)}, the call says it is {_text(at_us)}",
                    "Correct the clock that is wrong, and try again.",
                )
            self._set_record(clock_trust.agree(now))

    def close(self) -> None:
        """Note when time was last seen to pass."""
        with self._lock:
            now = self._reading()
            record = clock_trust.observe(self._record, now)
            self._set_record(record if record.doubt else clock_trust.agree(now))

    def _reading(self) -> Reading:
        clock = self._clock
        while True:
            before_ms, wall_us, after_ms = clock.boottime_ms(), clock.now_us(), clock.boottime_ms()
            # A process that was stopped between two looks has not read one moment.
            if after_ms - before_ms < _ONE_MOMENT_MS:
                return Reading(clock.boot_id(), wall_us, after_ms)

    def _set_record(self, record: ClockRecord) -> None:
        before, self._record = self._record, record
        self._is_saved = self._is_saved and record == before
        self._save()
        if record.doubt is not before.doubt:
            self._on_notice(_notice(record))

    def _save(self) -> None:
        if self._is_saved:
            return
        try:
            _write(self._files, self._record)
            self._is_saved = True
        except OSError as error:
            # On a full disk it is kept in memory, and the next look tries again.
            if error.errno not in FULL_ERRORS:
                raise


def _notice(record: ClockRecord) -> ClockNotice:
    if record.doubt is Doubt.STEP:
        return ClockNotice(
            "error", "clock_stepped",
            f"The wall clock has stepped forward by {record.ahead_us // 1_000_000} s. Nothing is deleted "
            "by age until it returns, or an operator agrees to it: rocketq broker clock NAME --agree.",
            {"ahead_us": record.ahead_us, "believed_us": record.wall_us},
        )  # fmt: skip
    if record.doubt is Doubt.OFF:
        return ClockNotice(
            "warning", "time_off_unconfirmed",
            f"No time was seen to pass since {_text(record.seen_us)}. Nothing is deleted by age before "
            f"{_text(record.believe_at_us)}, unless an operator agrees: rocketq broker clock NAME --agree.",
            {"seen_us": record.seen_us, "believe_at_us": record.believe_at_us},
        )  # fmt: skip
    return ClockNotice(
        "info", "clock_believed", "The wall clock is believed; messages are deleted by age.",
        {"believed_us": record.wall_us},
    )  # fmt: skip


def _text(us: int) -> str:
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(files: Files) -> ClockRecord | None:
    if not files.exists(PATH):
        return None
    file = files.open(PATH)
    try:
        return msgspec.json.decode(file.read(file.size(), 0), type=ClockRecord)
    except msgspec.DecodeError:
        # It is replaced whole, so it has rotted; the log's own times stand in for it.
        return None


def _write(files: Files, record: ClockRecord) -> None:
    files.make_directory(DIRECTORY)
    file = files.open(_ASIDE, create=True)
    file.truncate(0)
    file.write([msgspec.json.encode(record)], 0)
    file.sync()
    files.replace(_ASIDE, PATH)
    files.sync_directory(DIRECTORY)
