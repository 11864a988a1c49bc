"""Sending a stream of batches: rows are gathered into requests, a few of these are in flight at a time.

`Producer.send_batch` and `stage_batch` add one piece of data to a sender; Spark's sink adds batch after
batch. The steps from rows to requests are the same for both:

    add        makes batches of schema message/1 of the data, hashes the ordering keys, and gathers rows
               of one destination into a group of about `request_bytes`
    partition  shares the rows of a group out among queues (`queue_selectors`)
    parcels    packs each broker's slices into requests (`parcels`)
    deliver    sends them: the requests of one broker one after the other, several brokers in parallel

At most `in_flight` groups are being sent at a time. A group with an ordered selector is shared out only
when all groups before it are stored, so rows of one key or queue keep their order.

A sender belongs to one thread. The producer's worker threads deliver, and the calling thread delivers a
part of the last group itself, since it would only wait: a small batch needs no other thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NoReturn, Self, TypeAlias, TypeVar

from rocketq.clock import Clock
from rocketq.config import ProducerConfig
from rocketq.errors import RocketqError, SendFailed
from rocketq.model import MessageQueue, SendResult
from rocketq.producing.attempts.parcels import Parcel, parcels
from rocketq.producing.attempts.posts import Append, Post
from rocketq.producing.attempts.send_attempts import SendAttempts
from rocketq.producing.input_batches import OrderedBatch, OrderingKeys, combined, ordered_batches
from rocketq.producing.selection.queue_selectors import (
    Explicit,
    QueueSelector,
    QueueSlice,
    Selection,
    is_contiguous,
    resolved_queue,
)
from rocketq.producing.unique_ids import UNIQUE_IDS, identified

R = TypeVar("R")

#: Groups in flight of one sender, where order does not matter.
IN_FLIGHT: Final = 3
#: A sender holds at most so many requests' worth of rows that do not fill a request yet.
GATHERED_REQUESTS: Final = 4
#: Batches of this size on average are sent as they are, without a copy. Smaller ones are joined: each
#: would become frames of its own, and small frames slow down every reader.
JOIN_BELOW_BYTES: Final = 512 * 1024

#: Where rows go: a topic, and a queue of it if the caller chose one.
Destination: TypeAlias = tuple[str, MessageQueue | None]


@dataclass(frozen=True, slots=True)
class SendPlan(Generic[R]):
    """How all rows of one sender are sent. `ordering_key` is given if the selector needs keys."""

    selector: QueueSelector
    ordering_key: OrderingKeys | None
    post: Post[R]
    compression: str | None
    timeout_ms: int
    in_flight: int = IN_FLIGHT
    #: Whether each message gets an id of its own.
    unique_ids: bool = False


@dataclass(slots=True)
class _Gathered:
    """Rows of one destination that do not fill a request yet."""

    batches: list[OrderedBatch] = field(default_factory=list)
    nbytes: int = 0


@dataclass(slots=True)
class _Group(Generic[R]):
    """Rows that were shared out together. The delivering threads append to `stored` and `errors`."""

    stored: list[tuple[int, R]] = field(default_factory=list)
    errors: list[RocketqError] = field(default_factory=list)
    pending: set[Future[None]] = field(default_factory=set)

    def results(self) -> list[R]:
        """Return the results of the stored slices, in the order of their first rows."""
        return [result for _, result in sorted(self.stored, key=lambda pair: pair[0])]


class BatchSender(Generic[R]):
    """Sends what is added. Use `with`: what is not sent when the block ends by an error is dropped.

    `R` is what each stored slice results in: SendResult, or StagedSlice for a sender that stages.
    """

    def __init__(
        self,
        plan: SendPlan[R],
        delivery: SendAttempts,
        config: ProducerConfig,
        clock: Clock,
        queues: Callable[[str], Sequence[MessageQueue]],
        workers: Callable[[], Executor],
    ) -> None:
        """`queues` gives the write queues of a topic, or raises what forbids to send to it; `workers` gives
        the threads that deliver, and is not asked while the calling thread is enough.
        """
        self._plan, self._attempts, self._config, self._clock = plan, delivery, config, clock
        self._queues, self._workers = queues, workers
        # A slice may be half as large again (`cut`), and is never larger than a request.
        self._slice_bytes = min(config.slice_bytes, config.request_bytes * 2 // 3)
        self._gathered: dict[Destination, _Gathered] = {}
        self._groups: list[_Group[R]] = []
        self._in_flight: list[_Group[R]] = []

    def add(self, topic: str, data: Any, queue: MessageQueue | int | None = None) -> None:
        """Take over the rows of `data` (as `Producer.send_batch` takes it); block while enough is in flight.

        Rows go to `queue` if it is given, else where the sender's selector says. Raises InvalidBatch,
        InvalidMessage and InvalidConfiguration before any row of `data` is taken, and what a request in
        flight raised, as `finish` does.
        """
        batches = ordered_batches(data, self._plan.ordering_key, self._clock.now_us())
        if self._plan.unique_ids:
            batches = [
                replace(one, batch=identified(one.batch, UNIQUE_IDS.many(one.batch.num_rows)))
                for one in batches
            ]
        trace = self._attempts.trace
        if trace is not None and isinstance(self._plan.post, Append):
            batches = [replace(one, batch=trace.marked_batch(topic, one.batch)) for one in batches]
        queues = self._queues(topic)
        chosen = None if queue is None else resolved_queue(topic, queue, queues)
        for batch in batches:
            self._gather((topic, chosen), batch)
        while sum(g.nbytes for g in self._gathered.values()) > GATHERED_REQUESTS * self._config.request_bytes:
            self._ship(max(self._gathered, key=lambda destination: self._gathered[destination].nbytes))

    def finish(self) -> list[R]:
        """Send what is left and wait for all answers; return a result for each slice, in order of adding.

        Raises what the first failed request raised, when all that are in flight have ended; requests that
        were not begun are dropped. In `facts["stored"]` a SendFailed lists what this sender stored.
        """
        waiting = list(self._gathered)
        for destination in waiting:
            self._ship(destination, is_full=False, last=destination is waiting[-1])
        self._wait(0)
        return self._results()

    def close(self) -> None:
        """Drop what is not being sent, and wait for what is. Does nothing after `finish`."""
        self._gathered.clear()
        pending = [future for group in self._in_flight for future in group.pending]
        for future in pending:
            future.cancel()
        wait(pending)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------

    def _gather(self, destination: Destination, batch: OrderedBatch) -> None:
        held = self._gathered.get(destination)
        if held is not None and held.nbytes + batch.nbytes > self._config.request_bytes:
            self._ship(destination)
            held = None
        if held is None:
            held = self._gathered[destination] = _Gathered()
        held.batches.append(batch)
        held.nbytes += batch.nbytes

    def _ship(self, destination: Destination, is_full: bool = True, last: bool = False) -> None:
        """Share out the gathered rows of a destination and begin to send them.

        `is_full` is whether they are sent because there is no room for more.
        """
        topic, queue = destination
        held = self._gathered.pop(destination)
        selector = self._plan.selector if queue is None else Explicit(queue)
        batches = held.batches
        if held.nbytes < JOIN_BELOW_BYTES * len(batches) or not is_contiguous(selector):
            batches = [combined(batches)]
        self._wait(0 if selector.ordered else self._plan.in_flight - 1)
        choice = Selection(
            now_ms=self._attempts.now_ms(),
            slice_bytes=self._slice_bytes,
            batches=len(batches),
            reaches_all=not is_full,
        )
        try:
            slices = partitioned(selector, self._queues(topic), batches, choice)
            self._begin(list(parcels(topic, slices, self._config.request_bytes).values()), selector, last)
        except RocketqError as error:
            self._fail(error)

    def _begin(self, lists: Sequence[Sequence[Parcel]], selector: QueueSelector, last: bool) -> None:
        """Send each broker's list of parcels in order, the brokers in parallel."""
        group: _Group[R] = _Group()
        self._groups.append(group)
        self._in_flight.append(group)

        def deliver(broker_parcels: Sequence[Parcel]) -> None:
            try:
                for parcel in broker_parcels:
                    for piece, result in self._sent(parcel, selector):
                        group.stored.append((piece.first_row, result))
            except RocketqError as error:
                group.errors.append(error)

        own = lists[:1] if last else []
        group.pending = {self._workers().submit(deliver, others) for others in lists[len(own) :]}
        for broker_parcels in own:
            deliver(broker_parcels)

    def _sent(self, parcel: Parcel, selector: QueueSelector) -> Iterator[tuple[QueueSlice, R]]:
        plan = self._plan
        return self._attempts.send(
            parcel,
            selector,
            plan.compression,
            plan.post,
            timeout_ms=plan.timeout_ms,
            retries=self._config.retries,
        )

    def _wait(self, left: int) -> None:
        """Wait until at most `left` groups are in flight; raise what one of the others raised."""
        while True:
            for group in self._in_flight:
                done = {future for future in group.pending if future.done()}
                group.pending -= done
                for future in done:
                    future.result()
                if group.errors:
                    self._fail(group.errors[0])
            self._in_flight = [group for group in self._in_flight if group.pending]
            if len(self._in_flight) <= left:
                return
            wait([f for group in self._in_flight for f in group.pending], return_when=FIRST_COMPLETED)

    def _fail(self, error: RocketqError) -> NoReturn:
        """Wait for what is in flight, then raise the error; a SendFailed says what was stored."""
        self.close()
        results = [result for result in self._results() if isinstance(result, SendResult)]
        if isinstance(error, SendFailed) and results:
            error.facts["stored"] = [[r.queue.broker, r.queue.queue, r.offset, r.count] for r in results]
            error.hint = f"{sum(r.count for r in results)} messages of this call were stored. {error.hint}"
        raise error

    def _results(self) -> list[R]:
        return [result for group in self._groups for result in group.results()]


def partitioned(
    selector: QueueSelector,
    queues: Sequence[MessageQueue],
    batches: Sequence[OrderedBatch],
    selection: Selection,
) -> list[QueueSlice]:
    """Share several batches out, one after the other; rows count from the first row of the first."""
    slices: list[QueueSlice] = []
    before = 0
    for one in batches:
        pieces = selector.partition(queues, one.batch, replace(selection, hashes=one.hashes))
        slices += [piece.moved_by(before) for piece in pieces]
        before += one.batch.num_rows
    return slices
