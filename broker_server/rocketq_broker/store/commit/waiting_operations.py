"""Operations that wait for the log writer, and what they are answered.

Callers make operations (`store.MessageStore`, and the operations beside it). The log writer takes those that
wait, a `CommitPlan` decides them, and each is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocketq.model import Appended, SendStatus
from rocketq.protocol.documents.sinks import Staged
from rocketq.protocol.frame import FrameKind
from rocketq.protocol.send_number import SendNumber
from rocketq_broker.store.commit.small_batches import Addressed
from rocketq_broker.store.machines.machine import CopyName
from rocketq_broker.store.machines.timer_table import TimerPlace
from rocketq_broker.store.state.state import Change, State


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """Where each batch of an append went, in order."""

    status: SendStatus
    appended: tuple[Appended, ...]
    #: Where each lies that is a delayed message alone; empty if nothing is delayed.
    timers: tuple[TimerPlace | None, ...] = ()
    #: In how many pieces each batch of the body was appended; empty: in one each.
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedOutcome:
    """Where each batch of a held append lies in the log, in order."""

    status: SendStatus
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """How an append is held: what must be decided before, and under which number and kind its frames lie.

    `open` is given the state and the store time in milliseconds; it may refuse with an error. `holds` is
    whether this very append is held already, because its answer was lost and it came again.
    """

    kind: FrameKind
    open: Callable[[State, int], Change | None]
    number: Callable[[State], int]
    holds: Callable[[State], bool] = lambda state: False


@dataclass(frozen=True, slots=True, eq=False)
class AppendBatches:
    """An operation: append batches to queues of one topic, or hold them, all or none.

    `done` has an AppendOutcome, with `hold` a StagedOutcome, or the error. With `decide` the batches are
    stored together with a change of the state, if there is one to make, and not at all if there is none.
    `check` may refuse the append with an error, as the state is then. With a `number` they are stored once,
    however often the operation comes. `pieces` is kept for the answer.
    """

    topic: str
    batches: Sequence[Addressed]
    size: int
    submitted_ms: int
    done: Callable[[Any], None]
    hold: Hold | None = None
    decide: Callable[[State, int], Change | None] | None = None
    check: Callable[[State], None] = lambda state: None
    number: SendNumber | None = None
    pieces: tuple[int, ...] = ()

    @property
    def messages(self) -> int:
        return sum(each.rows for each in self.batches)


@dataclass(frozen=True, slots=True, eq=False)
class ChangeState:
    """An operation: decide a change (None: nothing to do), then answer from the state it made.

    With `awaits` the answer is made only when no held frame of that name is still to be copied.
    """

    decide: Callable[[State], Change | None]
    answer: Callable[[State], Any]
    done: Callable[[Any], None]
    awaits: CopyName | None = None
    size: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class WorkAlone:
    """An operation: work on the log writer's thread, between two commit groups."""

    work: Callable[[], Any]
    done: Callable[[Any], None]
    size: int = 0


Operation = AppendBatches | ChangeState | WorkAlone


@dataclass(slots=True)
class Receipt:
    """Collects where the batches of one append went, to answer it once."""

    operation: AppendBatches
    appended: list[Appended | None]
    staged: list[Staged] = field(default_factory=list)
    #: The places of delayed messages that were appended alone, by the index of their batch.
    timers: dict[int, TimerPlace] = field(default_factory=dict)
    pieces: tuple[int, ...] = ()

    def places(self) -> tuple[tuple[Appended, ...], tuple[TimerPlace | None, ...]]:
        """Return where the batches went, and the places of those that are a delayed message alone."""
        places = tuple(each for each in self.appended if each is not None)
        return places, tuple(map(self.timers.get, range(len(places)))) if self.timers else ()

    def answer(self, status: SendStatus) -> None:
        if self.operation.hold is not None:
            self.operation.done(StagedOutcome(status, tuple(self.staged)))
            return
        self.operation.done(AppendOutcome(status, *self.places(), self.pieces))
