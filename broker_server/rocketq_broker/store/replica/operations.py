"""What the replication service asks of a store (docs/architecture.md, "The store of a replica").

One thread makes these calls, one after the other, but for those marked *any*. They wait for the log writer
and for the disk. It is neither the event loop nor a thread on which the store calls its hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rocketq.errors import RocketqError
from rocketq.model import FlushMode, SendStatus
from rocketq_broker.epoch_lineage import LogView
from rocketq_broker.store.commit.confirmation import WriterHooks
from rocketq_broker.store.commit.ends import LogTail, ReplicaRule
from rocketq_broker.store.commit.log_writer import LogWriter
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.disk.replica_standing import Kept, StandingFile
from rocketq_broker.store.replica.following import Follower
from rocketq_broker.store.replica.healing import (
    DamagedRange,
    damaged_range,
    damaged_ranges,
    heal,
    sound_until,
)
from rocketq_broker.store.replica.raw_frames import RawFrames, read_frames, verified

#: Who refuses local writes: a store that is not in office, and the service for reasons of its own.
OFFICE: Final = "office"
_SERVICE: Final = "service"


@dataclass(frozen=True, slots=True)
class ReplicaHooks:
    """How a store is opened that is a replica. It opens as a follower.

    `on_log_moved` is called when more is written or durable, or the log was cut: on the store's threads, so
    it must not wait. Local writes are refused with `refusal` until `take_office`. Senders whose messages are
    safe here and wait for slaves are told `late_status` in the end.
    """

    on_log_moved: Callable[[], None]
    refusal: RocketqError
    late_status: Callable[[], SendStatus] = lambda: SendStatus.FLUSH_SLAVE_TIMEOUT

    def hooks(self, hooks: WriterHooks) -> WriterHooks:
        """Return the log writer's hooks with those of the replica."""
        return replace(hooks, on_log_moved=self.on_log_moved, late_status=self.late_status)


@dataclass(frozen=True, slots=True)
class FoundOnDisk:
    """What the start found, from which the service judges whether the disk has kept its promise."""

    was_stopped_cleanly: bool
    same_boot: bool
    log_end: int
    #: Why what was cut off as a torn tail may have been on disk; empty if nothing says so.
    doubt: str


class ReplicaOperations:
    """A store that is a replica, in its roles."""

    def __init__(
        self,
        parts: StoreParts,
        writer: LogWriter,
        follower: Follower,
        rule: ReplicaRule,
        standing: StandingFile,
        found: FoundOnDisk,
    ) -> None:
        """Begin as a follower; `MessageStore.open` has the writer refuse what is local."""
        self._config = parts.config
        self._files = parts.files
        self._log = parts.log
        self._ends = parts.ends
        self._clock = parts.clock
        self._writer = writer
        self._follower = follower
        self._rule = rule
        self._standing = standing
        #: What the start found.
        self.found = found

    # --- what is kept beside the log ----------------------------------------------------

    @property
    def kept(self) -> Kept:
        """What the disk has of this replica; any thread."""
        return self._standing.kept

    def begin_life(self, incarnation: str) -> None:
        """Keep the incarnation, old or new, once `found` was judged; call it at each start.

        Until then the next start finds what this one found. Durable on return.
        """
        self._standing.keep(incarnation=incarnation, boot_id=self._clock.boot_id(), doubt="")

    def keep_standing(self, group: str, epoch: int) -> None:
        """Keep the group and the highest epoch seen. Durable on return."""
        self._standing.keep(group=group, epoch=epoch)

    def keep_confirmed(self, end: int, epoch: int) -> None:
        """Keep a checkpoint of the confirmed end, and who told it. Durable on return, so call it rarely."""
        follows = not self._rule.in_office
        self._standing.keep(
            confirmed=end, confirmed_epoch=epoch, followed_from=self._ends.durable if follows else None
        )

    # --- the log ------------------------------------------------------------------------

    def view(self) -> LogView:
        """Return the log as decisions need it; any thread.

        A log that begins anew behind others and is still empty holds nothing, wherever it ends.
        """
        ends = self._ends
        with ends.lock:
            held = ends.durable if self._config.flush is FlushMode.SYNC else ends.written
            lineage = ends.lineage.begun_at(self._log.begin)
            if self._is_without_state(ends.written):
                held = 0
            return LogView(lineage, ends.written, held)

    def _is_without_state(self, end: int) -> bool:
        """Whether the log begins anew and has nothing yet: its first frame is to bring the state."""
        return end == self._log.begin > 0

    @property
    def confirmed(self) -> int:
        """The confirmed end that readers have; any thread."""
        return self._ends.confirmed

    def confirm(self, end: int) -> None:
        """Let readers see up to `end`, and senders have their answers; any thread. It never takes back."""
        self._rule.tell(end)
        self._writer.confirmation.confirm()

    def frames(self, at: int, bytes_max: int, end: int | None = None) -> RawFrames:
        """Read whole appends from `at` on, at least one; any thread that may wait for the disk.

        None lies beyond the written end, nor beyond `end`. Raises SegmentGone below the begin of the log, and
        CorruptFrame.
        """
        written = self._ends.written
        return read_frames(self._log, at, bytes_max, written if end is None else min(end, written))

    # --- roles --------------------------------------------------------------------------

    def take_office(self, epoch: int, *, waits: bool = True) -> int:
        """Turn the writer on; what it writes is of `epoch`. Return where that begins, the end of the log.

        With `waits` the confirmed end moves by `confirm` alone; without, by the rule of the flush mode.
        The log is on disk by then. Raises ValueError for an epoch that is not above all in the log, and for
        a log that begins anew and is empty.
        """

        def begin(tail: LogTail) -> int:
            if epoch <= tail.lineage.newest:
                raise ValueError(f"epoch {epoch} cannot follow {tail.lineage.newest}")
            if self._is_without_state(self._log.end):
                raise ValueError("the log is empty, and what lay before it is not here")
            self._follower.sync()
            self._standing.keep(followed_from=None)
            tail.epoch = epoch
            self._rule.waits, self._rule.in_office = waits, True
            self._writer.follow(False)
            self._writer.refuse_writes(OFFICE, None)
            self._writer.confirmation.confirm()
            return self._log.end

        return self._writer.alone(begin)

    def leave_office(self, error: RocketqError) -> None:
        """Turn the writer off: local writes are refused with `error`, and so are the senders that wait.

        What is written stays, unconfirmed. On return nothing more is appended.
        """
        self._writer.refuse_writes(OFFICE, error)

        def end(tail: LogTail) -> None:
            was_in_office, self._rule.in_office = self._rule.in_office, False
            self._writer.follow(True)
            self._writer.confirmation.refuse_waiting(error)
            self._writer.confirmation.refuse_awaiting(error)
            if was_in_office:
                self._follower.begin(tail)
                self._standing.keep(followed_from=self._ends.durable)

        self._writer.alone(end)

    def refuse_writes(self, error: RocketqError | None) -> None:
        """Refuse all local writes with an error, until None takes it back; any thread."""
        self._writer.refuse_writes(_SERVICE, error)

    # --- following ----------------------------------------------------------------------

    def append_frames(self, raw: RawFrames) -> None:
        """Append what the master has behind the end of this log; nothing is applied if it raises.

        Raises CorruptFrame, ShipmentMisplaced, StoreFull; CorruptLog for sound frames that do not fit what
        is here; LogFailed, after which the store has stopped.
        """
        frames = verified(raw)

        def append(tail: LogTail) -> None:
            self._check_following()
            self._follower.append(raw, frames, tail)

        self._writer.alone(append)

    def cut(self, end: int) -> None:
        """Cut the log at the end of an append; durable on return.

        It may lie below the confirmed end. Then readers are refused for a while, and what they see falls.
        """

        def cut(tail: LogTail) -> None:
            self._check_following()
            self._follower.cut(end, tail)

        self._writer.alone(cut)

    def begin_at(self, begin: int, before: int) -> None:
        """Drop the log and begin an empty one, behind a frame of epoch `before`; durable on return."""

        def begin_anew(tail: LogTail) -> None:
            self._check_following()
            self._follower.begin_at(begin, before, tail)

        self._writer.alone(begin_anew)

    # --- damage -------------------------------------------------------------------------

    def damages(self) -> tuple[DamagedRange, ...]:
        """Find the damaged parts of the log; any thread. It reads the whole log, so call it rarely."""
        return damaged_ranges(self._log, self._ends.written)

    def damage_at(self, at: int, why: str) -> DamagedRange | None:
        """Return the damaged part that begins with the frame at `at`, if it is damaged; any thread."""
        return damaged_range(self._log, at, why, self._ends.written)

    def sound_until(self, at: int, size: int) -> int:
        """Read confirmed frames from `at` on, the begin of one; any thread. Return where the next begins.

        At the confirmed end nothing is read. Raises CorruptFrame at damage, and SegmentGone.
        """
        return sound_until(self._log, at, size, self.confirmed)

    def unreadable(self) -> dict[int, str]:
        """Return where the key index met frames that it could not read; any thread."""
        return {hole.begin: "the key index could not read it" for hole in self._follower.index.holes()}

    @property
    def begin(self) -> int:
        """Where the log begins; any thread."""
        return self._log.begin

    def heal(self, damage: DamagedRange, raw: RawFrames) -> None:
        """Replace a damaged part by another member's bytes, whoever is master; durable on return.

        `raw` begins where the damage does and reaches beyond it. Raises CorruptFrame, or ShipmentMisplaced
        for bytes that this log did not have; nothing is written then.
        """
        self._writer.alone(lambda tail: heal(self._files, self._log, damage, raw))
        self._follower.index.healed(damage.begin, damage.end)
        self._writer.resume_copying()

    def _check_following(self) -> None:
        if self._rule.in_office:
            raise ValueError("this store is in office, and follows nobody")
