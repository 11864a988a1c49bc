"""The store's door for messages that are leased one by one: receives, acknowledgements, dead letters.

A receive looks where a queue stands (`standing`), reads, and then has its wishes leased (`take`). As
everywhere in the store, `done` is called on the writer's thread with the outcome or the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from rocketq.errors import TopicNotFound
from rocketq.protocol.documents.broker import GroupOffset
from rocketq.protocol.documents.leases import LeaseRefusal, ReceiptHandle
from rocketq.protocol.rules.reserved_names import dead_letter_topic
from rocketq_broker.store.commit.small_batches import QueueBatch
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.commit.waiting_operations import AppendBatches, ChangeState, Operation
from rocketq_broker.store.leases import decisions
from rocketq_broker.store.leases.decisions import OutRun, Receive
from rocketq_broker.store.leases.lease_clock import LeaseClock
from rocketq_broker.store.machines.claim_table import Place
from rocketq_broker.store.machines.lease_changes import LeasesTaken, Settled
from rocketq_broker.store.machines.lease_table import LeaseTable
from rocketq_broker.store.state.state import Change, State

Done = Callable[[Any], None]

#: A lease that ran out so long ago may not have been seen yet by a receive that is about to be held.
_JUST_OUT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a queue of a topic stands for the receivers of a group.

    The topic's number; [min, end) of the queue; `since`: from there on nothing was leased yet; how many
    further messages may be leased; and what has run out, the longest ago first. For an ordered receive what
    has run out is in the order of the queue, and comes before anything new; `is_held`: it gets nothing now.
    """

    topic_number: int
    min: int
    end: int
    since: int
    room: int
    out: tuple[OutRun, ...]
    ordered: bool = False
    is_held: bool = False

    @property
    def has_new(self) -> bool:
        """Whether there are messages that nobody has looked at, and that may be leased now."""
        return self.since < self.end and not (self.ordered and self.out) and not self.is_held


@dataclass(frozen=True, slots=True)
class HandleOutcomes:
    """What became of receipt handles: those that were good, and why the others are not."""

    good: tuple[ReceiptHandle, ...]
    refused: tuple[tuple[ReceiptHandle, LeaseRefusal], ...]
    #: The change that was made; None if it was none, or an acknowledgement.
    taken: LeasesTaken | None = None


class LeaseOperations:
    """What can be asked of the leased messages of one store."""

    def __init__(self, parts: StoreParts, submit: Callable[[Operation], None]) -> None:
        self._broker = parts.config.broker
        self._parts = parts
        self._submit = submit
        self._clock = LeaseClock(parts.clock, parts.ends.state.leases.at_ms)
        #: How many messages of one queue may be leased in a group.
        self.leases_max = parts.config.leased_messages_max

    # --- reads --------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        return self._parts.ends.state

    @property
    def table(self) -> LeaseTable:
        """The leases as they are now; a value that never changes."""
        return self._state.leases

    def now_ms(self) -> int:
        """Return the time of the lease clock."""
        return max(self._clock.now_ms(), self.table.at_ms)

    def has_begun(self, group: str, topic: str) -> bool:
        """Whether a group has an offset in every queue of a topic that can be read."""
        entry, offsets = self._state.topics.get(topic), self._state.groups.offsets(group)
        queues = range(0 if entry is None else entry.config.read_queues)
        return all((topic, queue) in offsets for queue in queues)

    def standing(self, group: str, place: Place, runs_max: int, *, ordered: bool = False) -> Standing | None:
        """Return where a queue stands, with at most `runs_max` runs; None if it cannot be read now.

        With `ordered` for an ordered receive, which takes at most `runs_max` messages.
        """
        # Taken once: the state may be another one a moment later.
        state = self._state
        entry = state.topics.get(place[0])
        if entry is None or not 0 <= place[1] < entry.config.read_queues:
            return None
        leases = state.leases.of_queue(group, place)
        held = self._parts.queues.range((entry.number, place[1]))
        out: tuple[OutRun, ...] = ()
        now_ms = self.now_ms()
        is_held = ordered and decisions.is_held(leases, now_ms)
        if leases is not None and not is_held:
            found = (
                decisions.first_out(leases, now_ms, runs_max)
                if ordered
                else islice(decisions.out_runs(leases, now_ms), runs_max)
            )
            out = tuple(found)
        room = self.leases_max - (0 if leases is None else leases.count)
        since = decisions.stands_at(state, group, place)
        return Standing(entry.number, held.min, held.end, since, room, out, ordered, is_held)

    def next_out_ms(self, group: str, topic: str) -> int | None:
        """Return when the next lease of a topic runs out, by the lease clock; None if there is none."""
        # What has run out since a receive looked counts as well; a queue that is held has older ones.
        at_ms = self.now_ms() - _JUST_OUT_MS
        found = (each for (name, _), each in self.table.of_group(group).items() if name == topic)
        times = (leases.due.next_ms(at_ms) for leases in found)
        return min((each for each in times if each is not None), default=None)

    def check_filter(self, group: str, topic: str, wanted: str) -> None:
        """Raise ReceiveFilterDiffers if the group wants something else of the topic."""
        decisions.check_filter(self._state, group, topic, wanted, self._broker)

    def check_unowned(self, group: str, topic: str) -> None:
        """Raise QueuesOwned if members of the group own queues of the topic."""
        decisions.check_unowned(self._state, group, topic, self._broker)

    def topic_number(self, topic: str) -> int:
        """Return what tells a topic from a later one of its name; raise TopicNotFound."""
        entry = self._state.topics.get(topic)
        if entry is None:
            raise TopicNotFound(topic, self._broker)
        return entry.number

    def begin(self, group: str, topic_number: int, offsets: Sequence[GroupOffset], done: Done) -> None:
        """Have a group begin at these offsets where it has none by now; `done` has None."""
        self._submit(
            ChangeState(
                lambda state: decisions.begin(state, group, topic_number, offsets), lambda state: None, done
            )
        )

    # --- receives -----------------------------------------------------------------------

    def take(self, receive: Receive, done: Done) -> None:
        """Lease what is wished for; `done` has the LeasesTaken (None if nothing is left) or the error."""
        taken: LeasesTaken | None = None

        def decide(state: State) -> Change | None:
            nonlocal taken
            taken = decisions.take(state, receive, self._clock.now_ms(), self._broker)
            return taken

        self._submit(ChangeState(decide, lambda state: taken, done))

    def drop(self, group: str, place: Place, runs: Sequence[OutRun], done: Done) -> None:
        """Give up messages whose leases have run out and that are not stored any more; `done` has None."""

        def decide(state: State) -> Change | None:
            now_ms = self._clock.now_ms()
            return decisions.settle(
                state, group, decisions.still_out(state, group, place, runs, now_ms), now_ms
            )

        self._submit(ChangeState(decide, lambda state: None, done))

    def bury(self, group: str, place: Place, run: OutRun, letters: QueueBatch, done: Done) -> None:
        """Store dead letters in the group's topic for them, which exists, and settle their leases.

        Both are one append. `done` has an AppendOutcome, or TopicNotFound.
        """

        def decide(state: State, at_ms: int) -> Change | None:
            now_ms = self._clock.now_ms()
            return decisions.settle(
                state, group, decisions.still_out(state, group, place, [run], now_ms), now_ms
            )

        submitted_ms = self._parts.clock.monotonic_ms()
        self._submit(
            AppendBatches(
                dead_letter_topic(group), [letters], letters.sent_bytes, submitted_ms, done, decide=decide
            )
        )

    # --- receipt handles ----------------------------------------------------------------

    def acknowledge(self, group: str, handles: Sequence[ReceiptHandle], done: Done) -> None:
        """Settle the messages of handles; `done` has the HandleOutcomes."""
        judged = HandleOutcomes((), ())

        def decide(state: State) -> Change | None:
            nonlocal judged
            now_ms = self._clock.now_ms()
            judged = _judged(state, group, handles, now_ms)
            settled: tuple[Settled, ...] = decisions.by_lease(judged.good)
            return decisions.settle(state, group, settled, now_ms)

        self._submit(ChangeState(decide, lambda state: judged, done))

    def change_time(
        self, group: str, handles: Sequence[ReceiptHandle], invisible_ms: int, done: Done
    ) -> None:
        """Hide the messages of handles for so long from now on; `done` has the HandleOutcomes."""
        judged = HandleOutcomes((), ())

        def decide(state: State) -> Change | None:
            nonlocal judged
            now_ms = self._clock.now_ms()
            found = _judged(state, group, handles, now_ms)
            change = decisions.change_time(state, group, found.good, invisible_ms, now_ms)
            judged = HandleOutcomes(found.good, found.refused, change)
            return change

        self._submit(ChangeState(decide, lambda state: judged, done))


def _judged(state: State, group: str, handles: Iterable[ReceiptHandle], now_ms: int) -> HandleOutcomes:
    good, refused = [], []
    for handle in dict.fromkeys(handles):
        why = decisions.refusal(state, group, handle, now_ms)
        if why is None:
            good.append(handle)
        else:
            refused.append((handle, why))
    return HandleOutcomes(tuple(good), tuple(refused))
