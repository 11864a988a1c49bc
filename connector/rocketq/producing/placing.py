"""What a caller said about the queues of a batch, and that it does not contradict itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue
from rocketq.producing.input_batches import OrderingKeys
from rocketq.producing.queue_selectors import QueueSelector, no_ordering_key, strategy

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
