"""Whether what lies on the disk is still what it promised to be.

A replica in the in-sync set has promised to hold the log up to what it acknowledged. If its disk was
emptied, or lost an end that was acknowledged, or has rotted, the promise is broken. The replica then takes
a new incarnation: in the record of the group it is a stranger, which may follow and join, and not be
elected for what the old one had.

Under sync flush a crash takes only what was never acknowledged. Under async flush it takes acknowledged
frames if the machine went down with them in the page cache, and none if only the process died: the kernel's
boot id tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketq.model import FlushMode


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """What a start finds. `incarnation` is "" where no replica was before."""

    incarnation: str
    flush: FlushMode
    was_stopped_cleanly: bool
    same_boot: bool
    log_end: int
    #: The confirmed end of the last checkpoint, which was below what was held.
    confirmed: int
    is_rotten: bool


def broken_promise(facts: DiskFacts) -> str:
    """Say why the storage needs a new incarnation; empty if it keeps its own."""
    if not facts.incarnation:
        return "the data directory is new"
    if facts.is_rotten:
        return "a part of the log that was on disk is damaged"
    if facts.log_end < facts.confirmed:
        return f"the log ends at {facts.log_end}, and {facts.confirmed} was confirmed"
    if facts.flush is FlushMode.ASYNC and not facts.was_stopped_cleanly and not facts.same_boot:
        return "the machine went down under async flush, and may have lost acknowledged messages"
    return ""
