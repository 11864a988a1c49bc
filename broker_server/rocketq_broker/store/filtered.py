"""One pull through a filter: scanned here, or shared with those beside us.

    offset             middle                     reach           end
      ├── our own share ──┼── what others are offered ──┤ ……………………… │

A long scan by tag is shared, each share being what one scan may look at. What others are offered
is looked up first, by the queue's units alone, and they begin while we look up and scan the
beginning. How many messages that are is told by the first frame: how frames differ makes shares
unequal and nothing else.

What others found is taken if it follows on what we reached without a gap, and the answer has room for
it. Otherwise the answer ends where we are, and the next pull goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final, Protocol

from rocketq.errors import RocketqError
from rocketq.protocol.frame import FrameHeader
from rocketq_broker.store import selection
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.consume_queue import ConsumeQueue
from rocketq_broker.store.jobs import Job, MessageFilter, Share
from rocketq_broker.store.pieces import Piece, joined, pieces
from rocketq_broker.store.reader import Place, check_extent
from rocketq_broker.store.selection import scan

#: A scan that reads less is not shared.
SHARED_BYTES_MIN: Final = 8 << 20
#: Our part is smaller than another's, since we look both up.
OWN_PART: Final = 7
OTHERS_PART: Final = 8
#: Nor is one of more pieces: what they take to describe is then no longer little.
SHARED_PIECES_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class Selected:
    """The filtered frames and the queue offset where the scan stopped."""

    chunks: list[bytes]
    next_offset: int


class Beside(Protocol):
    """Those who take a share of a scan (`store.scanners`)."""

    def free(self) -> int:
        """Return how many shares could be taken now."""
        ...

    def begin(self, job: Job) -> Share | None:
        """Hand over a share; None if nobody takes it."""
        ...


def select(
    log: CommitLog,
    queue: ConsumeQueue,
    topic: str,
    offset: int,
    end: int,
    chosen: MessageFilter,
    max_bytes: int,
    max_messages: int | None,
    beside: Beside | None = None,
) -> Selected:
    """Scan [offset, end) for matches until a limit is reached; always advances."""
    stop = min(end, offset + selection.SCAN_MESSAGES_MAX)
    wanted = end - offset if max_messages is None else max_messages
    whole = Job(topic, queue.id, chosen, (), stop, max_bytes, wanted, log.starts)
    if beside is None or chosen.hashes is None:
        found = pieces(log, queue, offset, stop, chosen.hashes)
        return _alone(log, queue, whole, found)
    return _shared(log, queue, offset, end, whole, beside)


def _alone(log: CommitLog, queue: ConsumeQueue, whole: Job, found: Iterator[Piece]) -> Selected:
    done = scan(log, queue, whole, found)
    return Selected(done.chunks, done.next_offset)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where to cut a scan, at edges of frames: others are offered [middle, reach)."""

    middle: int
    reach: int


def _shared(
    log: CommitLog, queue: ConsumeQueue, offset: int, end: int, whole: Job, beside: Beside
) -> Selected:
    """Share a scan if it is worth it and anybody is free."""
    hashes = whole.chosen.hashes
    plan = _plan(log, queue, offset, end, beside)
    if plan is None:
        return _alone(log, queue, whole, pieces(log, queue, offset, whole.stop, hashes))
    middle, reach = plan.middle, plan.reach
    offered, found = _looked_up(replace(whole, stop=reach), pieces(log, queue, middle, reach, hashes))
    shares = _begun(offered, beside)
    if not shares:
        before = pieces(log, queue, offset, middle, hashes)
        after = pieces(log, queue, reach, max(reach, whole.stop), hashes)
        whole = replace(whole, stop=max(reach, whole.stop))
        # A unit that leads astray may have had us cut within a frame.
        return _alone(log, queue, whole, joined(chain(before, found, after)))
    try:
        own = scan(log, queue, replace(whole, stop=middle), pieces(log, queue, offset, middle, hashes))
    finally:
        others = [share.result() for _, share in shares]
    chunks, size, count, reached = own.chunks, own.bytes, own.found, own.next_offset
    # Whatever lies between the middle and the first share was seen not to match.
    follows = reached == middle
    for other, (job, _) in zip(others, shares, strict=True):
        if other is None or not follows:
            break
        size, count = size + other.bytes, count + other.found
        if chunks and (size > whole.max_bytes or count > whole.wanted):
            break
        chunks, reached = chunks + other.chunks, other.next_offset
        follows = reached == job.stop
    return Selected(chunks, reached)


def _plan(log: CommitLog, queue: ConsumeQueue, offset: int, end: int, beside: Beside) -> _Plan | None:
    """Return where to cut; None if too little is read, or nobody is free.

    Each share is what one scan may look at, less an eighth: where frames are larger than the first, a
    share of ours that ends too early would have the others scan in vain.
    """
    try:
        first = _frame_at(log, queue, offset)
        message_bytes = max(1, first.size // max(1, first.count))
        share = min(selection.SCAN_MESSAGES_MAX, selection.SCAN_BYTES_MAX // 8 * 7 // message_bytes)
        least = min(end - offset, 2 * share) * message_bytes
        if least < SHARED_BYTES_MIN or not (helpers := beside.free()):
            return None
        reach = min(end, offset + (1 + helpers) * share)
        own = (reach - offset) * OWN_PART // (OWN_PART + helpers * OTHERS_PART)
        middle = _frame_at(log, queue, offset + own).queue_offset
        if reach < end:
            reach = _frame_at(log, queue, reach).queue_offset
    except (RocketqError, OSError):
        # It is raised where the scan comes to it.
        return None
    return _Plan(middle, reach) if offset < middle < reach else None


def _frame_at(log: CommitLog, queue: ConsumeQueue, offset: int) -> FrameHeader:
    """Return the header of the frame that holds a message; raise CorruptQueue, CorruptFrame or OSError."""
    [unit] = queue.read(offset, 1)
    place = Place(int(unit["log_offset"]), int(unit["size"]), offset)
    check_extent(log, queue, place)
    return log.header(place.log_offset)


def _looked_up(whole: Job, found: Iterator[Piece]) -> tuple[Job | None, Iterator[Piece]]:
    """Return the job with its pieces if it is worth offering, else None; and the pieces from the first on.

    It is not where little is read, where frames are small, or where the answer may have no room for all
    of it: what a share finds beyond the room would have been read in vain.
    """
    ahead: list[Piece] = []
    size = messages = likely_bytes = 0
    try:
        for piece in found:
            ahead.append(piece)
            size += piece.place.size
            messages += piece.offsets.size
            likely_bytes += piece.likely_bytes
            is_small = messages <= whole.wanted and 4 * likely_bytes <= whole.max_bytes
            if not is_small or len(ahead) > SHARED_PIECES_MAX:
                return None, chain(ahead, found)
    except (RocketqError, OSError) as error:
        # It lies behind these, and is raised there.
        return None, _followed_by(ahead, error)
    return replace(whole, pieces=ahead) if 2 * size >= SHARED_BYTES_MIN else None, iter(ahead)


def _followed_by(found: Sequence[Piece], error: Exception) -> Iterator[Piece]:
    yield from found
    raise error


def _begun(offered: Job | None, beside: Beside) -> list[tuple[Job, Share]]:
    """Offer a job in parts that follow one another; return those taken, up to the first that was not."""
    begun: list[tuple[Job, Share]] = []
    if offered is None or not (free := beside.free()):
        return begun
    sizes = [piece.place.size for piece in offered.pieces]
    for begin, end in pairwise([0, *in_shares(sizes, free)]):
        stop = offered.pieces[end].place.offset if end < len(sizes) else offered.stop
        job = replace(offered, pieces=offered.pieces[begin:end], stop=stop)
        share = beside.begin(job)
        if share is None:
            break
        begun.append((job, share))
    return begun


def in_shares(sizes: Sequence[int], count: int) -> list[int]:
    """Return where to cut a sequence into at most `count` runs of about the same sum: the end of each."""
    total = sum(sizes)
    ends: list[int] = []
    done = 0
    for index, size in enumerate(sizes):
        done += size
        if done * count >= total * (len(ends) + 1):
            ends.append(index + 1)
    return ends
