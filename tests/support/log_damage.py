"""Damaging chosen frames of a stopped store's log, and salvaging what is left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rocketq.protocol.frame import Frame, FrameHeader
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk.files import OSFiles
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.recovery.salvage import SalvageReport, salvage


def log_of(directory: Path) -> CommitLog:
    files = OSFiles(directory)
    return CommitLog(files, Handles(files, 8))


def frames_of(directory: Path) -> list[Frame]:
    """All frames of a log."""
    log = log_of(directory)
    return list(log.frames(log.begin))


def log_below(directory: Path, end: int) -> bytes:
    """The bytes of a log up to an end."""
    log, found = log_of(directory), list[bytes]()
    for start in log.starts:
        if start < end:
            found.append(bytes(log.read(start, min(log.size_of(start), end - start))))
    return b"".join(found)


def damage(directory: Path, headers: Iterable[FrameHeader]) -> None:
    """Flip a bit in the middle of each of these frames."""
    log = log_of(directory)
    for header in headers:
        segment = log.segment_of(header.log_offset)
        with (directory / log.path(segment)).open("r+b") as file:
            file.seek(header.log_offset - segment + header.size // 2)
            before = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([before[0] ^ 0x10]))


def salvaged(settings: StoreConfig) -> SalvageReport:
    """Salvage a stopped store; damage at the end of its log is no torn write, because a snapshot says so."""
    files = OSFiles(settings.directory)
    files.lock()
    try:
        return salvage(files, settings.queue_file_units, settings.open_files_max)
    finally:
        files.unlock()
