"""What the members of a consumer group may do: a checker of who handled which message, and when. Pure.

at least once      every message that is stored was handled by the group; by every member that broadcasts
exactly once       and not twice, if nothing crashed or stood still
in order           a queue never runs ahead: a message is begun only behind all that lie before it. So a queue
                   goes back only to what was not committed, and never past what nobody has handled
shared             each queue has one owner, and every owner is a member that lives
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

Queue = tuple[str, int]


class Handling(NamedTuple):
    """A member began to handle a message, at a time of the machine's count (ns)."""

    at_ns: int
    queue: Queue
    offset: int


def lost(stored: Mapping[Queue, int], handled: Iterable[Handling]) -> list[str]:
    """Return the messages that nobody handled; queue by queue, `stored` are at the offsets from 0 on."""
    there = {(each.queue, each.offset) for each in handled}
    return [
        f"{queue} at {offset} was lost"
        for queue, end in stored.items()
        for offset in range(end)
        if (queue, offset) not in there
    ]


def twice(handled: Iterable[Handling]) -> list[str]:
    """Return the messages that were handled more than once."""
    counts = Counter((each.queue, each.offset) for each in handled)
    return [f"{place} was handled {count} times" for place, count in counts.items() if count > 1]


def ran_ahead(handled: Iterable[Handling]) -> list[str]:
    """Return what was begun before a message in front of it."""
    reached: dict[Queue, int] = {}
    found = []
    for each in sorted(handled):
        next_offset = reached.get(each.queue, 0)
        if each.offset > next_offset:
            found.append(f"{each.queue} at {each.offset} was begun before {next_offset}")
        reached[each.queue] = max(next_offset, each.offset + 1)
    return found


def badly_shared(owners: Mapping[Queue, str | None], live: Collection[str]) -> list[str]:
    """Return the queues without an owner that lives; that a queue has two owners, no answer can say."""
    return [f"{queue} is owned by {owner}" for queue, owner in owners.items() if owner not in live]
