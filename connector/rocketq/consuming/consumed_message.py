"""Messages as a consumer of a group hands them out: light views of the batch they came in.

A `Delivery` is a run of messages of one queue that was handed out at once. It keeps them as Arrow columns,
makes Python values of a column when the column is first asked for, and remembers which messages are
handled. A `ConsumedMessage` is a delivery and a row. So a message that is only counted costs two words, and
one whose body alone is read costs a view and its body.

Acknowledging sets one byte, which Python does in one step: it needs no lock, and it may be done from any
thread. What follows from it, the offset that may be committed, is worked out when somebody asks
(`rocketq.consuming.fetching.process_queue`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from rocketq.consuming.retries import Failure
from rocketq.model import UNIQUE_ID_PROPERTY, MessageQueue, message_id
from rocketq.protocol.frame_slices import FrameSlice
from rocketq.protocol.rules.delivery_time import duration_ms
from rocketq.protocol.rules.reserved_names import is_retry_topic
from rocketq.protocol.rules.retry_properties import Origin, origin_of
from rocketq.protocol.stored_rows import column_values

#: Called for a message that failed: its delivery, its row, and what is said of it.
FailHandler: TypeAlias = "Callable[[Delivery, int, Failure], None]"


class Delivery:
    """Messages of one queue that were handed out together, in order.

    `attempt` is 1 when they are handed out for the first time. `handled` has a 1 for each message that is
    acknowledged, or that a later delivery has taken over. `size` is their size in bytes.
    """

    __slots__ = (
        "_bodies", "_keys", "_offsets", "_origins", "_others", "_tags", "attempt", "fail_handler", "handled",
        "is_recalled", "is_returned", "piece", "queue", "row", "size",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        piece: FrameSlice,
        size: int,
        attempt: int,
        fail_handler: FailHandler,
    ) -> None:
        self.queue, self.piece, self.size, self.attempt = queue, piece, size, attempt
        self.fail_handler = fail_handler
        self.handled = bytearray(piece.rows)
        #: The row that a worker of a listener has in hand; -1 before the first, `rows` behind the last.
        self.row = -1
        #: The queue is lost or to be released: what nobody has begun to work on is not to be handed out.
        self.is_recalled = False
        #: The messages failed before and come from a retry topic.
        self.is_returned = is_retry_topic(queue.topic)
        self._origins: list[Origin] | None = None
        self._bodies: list[bytes] | None = None
        self._keys: list[bytes | None] | None = None
        self._tags: list[str | None] | None = None
        self._offsets: Sequence[int] | None = None
        self._others: dict[str, list[Any]] = {}

    @property
    def rows(self) -> int:
        return len(self.handled)

    @property
    def is_handled(self) -> bool:
        """Whether every message is acknowledged."""
        return self.handled.find(0) < 0

    @property
    def unhandled(self) -> int:
        """The number of messages that are not acknowledged."""
        return self.handled.count(0)

    def first_unhandled(self) -> int | None:
        """Return the offset of the first message that is not acknowledged, None if all are."""
        row = self.handled.find(0)
        return None if row < 0 else self.offsets[row]

    def acknowledge(self, first: int = 0, end: int | None = None) -> None:
        """Acknowledge the messages of rows [first, end); all from `first` on without `end`."""
        end = self.rows if end is None else end
        self.handled[first:end] = b"\1" * (end - first)

    def acknowledge_up_to(self, offset: int) -> None:
        """Acknowledge all messages up to and including the one at an offset."""
        rows = int(self.piece.offsets().searchsorted(offset, side="right"))
        self.acknowledge(0, rows)

    def fail(self, row: int, failure: Failure) -> None:
        """Have a message tried again: after the delay that is asked for, or as its attempts demand."""
        if not self.handled[row]:
            self.fail_handler(self, row, failure)

    def attempt_of(self, row: int) -> int:
        """Return which attempt at a message this is, over all members that had it."""
        return self.attempt + self.origins[row].failures if self.is_returned else self.attempt

    def messages(self) -> list[ConsumedMessage]:
        """Return the messages as views."""
        return list(map(ConsumedMessage, repeat(self), range(self.rows)))

    # --- values, made when they are first asked for --------------------------------

    @property
    def bodies(self) -> list[bytes]:
        if self._bodies is None:
            self._bodies = self.piece.batch.column("body").to_pylist()
        return self._bodies

    @property
    def keys(self) -> list[bytes | None]:
        if self._keys is None:
            self._keys = column_values(self.piece.batch.column("key"))
        return self._keys

    @property
    def tags(self) -> list[str | None]:
        if self._tags is None:
            self._tags = column_values(self.piece.batch.column("tag"))
        return self._tags

    @property
    def origins(self) -> list[Origin]:
        """Where the messages lay before they failed first; their own places if nothing says it."""
        if self._origins is None:
            self._origins = [
                origin_of(None if found is None else dict(found)) or Origin(self.queue, self.offsets[row], 0)
                for row, found in enumerate(column_values(self.piece.batch.column("properties")))
            ]
        return self._origins

    @property
    def offsets(self) -> Sequence[int]:
        if self._offsets is None:
            piece = self.piece
            consecutive = piece.filtered_offsets is None
            self._offsets = (
                range(piece.offset, piece.next_offset) if consecutive else piece.offsets().tolist()
            )
        return self._offsets

    def value(self, name: str, row: int) -> Any:
        """Return a value of a column that fewer programs read; times are in µs."""
        if name not in self._others:
            column = self.piece.batch.column(name)
            self._others[name] = column_values(column.cast(pa.int64()) if name == "born_at" else column)
        return self._others[name][row]


class MessageView(msgspec.Struct, frozen=True, gc=False):
    """What a message of a delivery says. It stays usable after the consumer moved on.

    It has what `StoredMessage` has, and `attempt`. One that failed before has the queue, the offset and the
    id that it had at first.
    """

    _delivery: Delivery
    _row: int

    @property
    def body(self) -> bytes:
        return self._delivery.bodies[self._row]

    @property
    def key(self) -> bytes | None:
        return self._delivery.keys[self._row]

    @property
    def tag(self) -> str | None:
        return self._delivery.tags[self._row]

    @property
    def properties(self) -> dict[str, str] | None:
        found = self._delivery.value("properties", self._row)
        return None if found is None else dict(found)

    @property
    def born_at_us(self) -> int | None:
        """When the producer made it, in µs since 1970."""
        born: int | None = self._delivery.value("born_at", self._row)
        return born

    @property
    def stored_at_us(self) -> int:
        """When the broker stored it, in µs since 1970."""
        return self._delivery.piece.header.stored_at_us

    @property
    def queue(self) -> MessageQueue:
        delivery = self._delivery
        return delivery.origins[self._row].queue if delivery.is_returned else delivery.queue

    @property
    def offset(self) -> int:
        delivery = self._delivery
        return delivery.origins[self._row].offset if delivery.is_returned else delivery.offsets[self._row]

    @property
    def message_id(self) -> str:
        return message_id(self.queue, self.offset)

    @property
    def unique_id(self) -> str | None:
        """The id that its producer gave it; its copies have the same."""
        return (self.properties or {}).get(UNIQUE_ID_PROPERTY)

    @property
    def attempt(self) -> int:
        """1 when it is handed out for the first time, 2 after one failure, and so on.

        Attempts in place, of an ordered or a broadcasting member, are counted by the member alone.
        """
        return self._delivery.attempt_of(self._row)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.message_id}, attempt={self.attempt}, body={self.body[:64]!r})"


class ConsumedMessage(MessageView, frozen=True, gc=False):
    """A message as a member of a consumer group gets it: a view that can be acknowledged."""

    def ack(self) -> None:
        """Say that the message is handled: the group's offset may pass it. Twice is no error."""
        self._delivery.handled[self._row] = 1

    def nack(self, delay: str | timedelta | None = None, *, reason: str = "") -> None:
        """Say that the message could not be handled: it is tried again, or becomes a dead letter.

        `delay` is the wait before the next attempt, such as "30s"; without it the back-off decides
        (docs/consumer.md). `reason` is kept with the message. Other members may get it then. The call
        returns at once; until the broker has a copy, the group's offset does not pass the message. After
        `ack` it does nothing. Raises InvalidConfiguration for what is no duration.
        """
        self._delivery.fail(self._row, Failure(None if delay is None else duration_ms(delay), reason))
