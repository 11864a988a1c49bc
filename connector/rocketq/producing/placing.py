"""Which queues messages go to: what a caller says about it, and the selectors of one producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue
from rocketq.producing.accumulation.accumulator import Destination
from rocketq.producing.input_batches import OrderingKeys
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.producing.selection.queue_selectors import (
    DEFAULT_KEYED_STRATEGY,
    DEFAULT_STRATEGY,
    ByHash,
    Explicit,
    QueueSelector,
    QueueSlice,
    RoundRobin,
    Selection,
    no_ordering_key,
    resolved_queue,
    strategy,
)
from rocketq.protocol.column_values import optional_bytes
from rocketq.protocol.hashing import hash_column

#: A name of `queue_selectors.STRATEGIES`.
SelectionName: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Placing:
    """What a caller said about the queues of a batch."""

    ordering_key: OrderingKeys | None
    selection: SelectionName | QueueSelector | None
    queue: MessageQueue | int | None

    def check(self) -> None:
        """Raise InvalidConfiguration if more than one of them chooses the queues.

        A strategy that needs keys goes with `ordering_key`, and not without it.
        """
        named = strategy(self.selection) if isinstance(self.selection, str) else None
        if named is not None and named.needs_key:
            if self.ordering_key is None:
                raise no_ordering_key(str(self.selection), "nothing says what orders the messages")
            choices: dict[str, object] = {"queue": self.queue, "ordering_key": self.ordering_key}
        else:
            choices = {"queue": self.queue, "selection": self.selection, "ordering_key": self.ordering_key}
        given = [name for name, value in choices.items() if value is not None]
        if len(given) > 1:
            why = f"it contradicts {given[1]}, which chooses the queue itself"
            raise InvalidConfiguration(
                given[0], str(choices[given[0]]), why, hint="Leave one of the two out."
            )


class ProducerSelectors:
    """The selectors of one producer. All its sends share them: each goes on where the one before ended."""

    def __init__(self, fault: FaultTolerance | None) -> None:
        self._fault = fault
        self._round_robin, self._by_hash = RoundRobin(fault), ByHash()

    def of_message(
        self,
        topic: str,
        order: bytes | None,
        queue: MessageQueue | int | None,
        queues: Sequence[MessageQueue],
    ) -> QueueSelector:
        """Return what chooses the queue of one message; raise InvalidConfiguration."""
        if queue is not None:
            if order is not None:
                raise InvalidConfiguration(
                    "queue", queue, "it contradicts ordering_key, which chooses the queue itself"
                )
            return Explicit(resolved_queue(topic, queue, queues))
        return self._round_robin if order is None else self._by_hash

    def of_data(self, placing: Placing) -> QueueSelector:
        """Return what chooses the queues of many messages."""
        chosen = placing.selection
        if chosen is not None and not isinstance(chosen, str):
            return chosen
        name = chosen or (DEFAULT_STRATEGY if placing.ordering_key is None else DEFAULT_KEYED_STRATEGY)
        shared: Mapping[str, QueueSelector] = {
            DEFAULT_STRATEGY: self._round_robin,
            DEFAULT_KEYED_STRATEGY: self._by_hash,
        }
        return shared.get(name) or strategy(name).make(self._fault)

    def place(
        self,
        destination: Destination,
        batch: pa.RecordBatch,
        orders: Sequence[bytes | None],
        queues: Sequence[MessageQueue],
        now_ms: int,
    ) -> tuple[QueueSelector, list[QueueSlice]]:
        """Choose the queues of an accumulated batch, by the route of now."""
        if destination.queue is not None and not destination.is_keyed:
            return Explicit(destination.queue), [QueueSlice(destination.queue, batch, 0)]
        if destination.is_keyed:
            selection = Selection(hashes=hash_column(optional_bytes(orders, pa.binary())), now_ms=now_ms)
            return self._by_hash, self._by_hash.partition(queues, batch, selection)
        chosen = self._round_robin.select(queues, Selection(now_ms=now_ms))
        return self._round_robin, [QueueSlice(chosen, batch, 0)]
