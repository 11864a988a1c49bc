"""What a store has promised, and whether it kept it.

Operations enter the ledger in the order they were handed over. An answered one is
*promised* once the flush mode says it is on disk; until then, and if it was never
answered, it is *pending*: it may be there after a crash or not, but if it is then
whole and in order. A refused one (any error but BrokerUnavailable, which says
nothing of the past) has not happened.

`check` holds a recovered store against this; `adopt` then takes what the store has
as the truth to go on from, since recovery has put it on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocketq.errors import BrokerUnavailable, RocketqError
from rocketq.model import TopicConfig
from rocketq_broker.store.store import AppendOutcome
from tests.support.store_driver import Driver

Place = tuple[str, int]


@dataclass(slots=True)
class Send:
    """Batches of bodies, each to a queue of one topic; bodies are unique in a run."""

    topic: str
    parts: tuple[tuple[int, tuple[bytes, ...]], ...]
    outcome: Any = None


@dataclass(slots=True)
class Create:
    topic: str
    queues: int
    outcome: Any = None


@dataclass(slots=True)
class Alter:
    """Only ever grows the topic."""

    topic: str
    queues: int
    outcome: Any = None


@dataclass(slots=True)
class Delete:
    topic: str
    outcome: Any = None


@dataclass(slots=True)
class Commit:
    group: str
    topic: str
    queue: int
    offset: int
    reset: bool = False
    outcome: Any = None


Entry = Send | Create | Alter | Delete | Commit


@dataclass(slots=True)
class Topic:
    """A topic as it must be: its incarnation and the bodies of each queue from offset 0 on."""

    incarnation: str
    #: None where retention had taken a message before it could be known.
    queues: list[list[bytes | None]]


class BrokenPromise(AssertionError):
    """The store does not hold what it answered for, or holds what it should not."""


@dataclass(slots=True)
class Ledger:
    """The promised state, and the operations whose fate is open."""

    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, dict[Place, int]] = field(default_factory=dict)
    pending: list[Entry] = field(default_factory=list)
    promised: int = 0

    # --- writing it -----------------------------------------------------------------

    def enter(self, entry: Entry) -> None:
        """Note an operation with its outcome."""
        outcome = entry.outcome
        if isinstance(outcome, RocketqError) and not isinstance(outcome, BrokerUnavailable):
            return
        self.pending.append(entry)

    def flushed(self) -> None:
        """All that was answered until now is on disk: the store must keep it."""
        still_open = []
        for entry in self.pending:
            if isinstance(entry.outcome, BrokerUnavailable):
                still_open.append(entry)
            else:
                self._fold(entry)
                self.promised += 1
        self.pending = still_open

    def _fold(self, entry: Entry) -> None:
        match entry:
            case Create(name, queues, config):
                if name not in self.topics:
                    assert isinstance(config, TopicConfig)
                    self.topics[name] = Topic(config.incarnation, [[] for _ in range(queues)])
            case Alter(name, queues):
                rows = self.topics[name].queues
                rows.extend([] for _ in range(queues - len(rows)))
            case Delete(name):
                del self.topics[name]
                for table in self.groups.values():
                    for place in [each for each in table if each[0] == name]:
                        del table[place]
            case Commit(group, topic, queue, offset, reset):
                table = self.groups.setdefault(group, {})
                if reset or offset > table.get((topic, queue), -1):
                    table[topic, queue] = offset
            case Send(name, parts, outcome):
                assert isinstance(outcome, AppendOutcome)
                for (queue, bodies), where in zip(parts, outcome.appended, strict=True):
                    row = self.topics[name].queues[queue]
                    _expect(
                        (where.queue, where.offset, where.count) == (queue, len(row), len(bodies)),
                        f"{name}/{queue}: {len(bodies)} messages were acknowledged at {where}, "
                        f"the queue had {len(row)}",
                    )
                    row.extend(bodies)

    # --- holding a store against it -----------------------------------------------------

    def check(self, driver: Driver) -> None:
        """Raise BrokenPromise unless the store holds all that is promised and nothing unasked."""
        self._check_topics(driver)
        for name, topic in self.topics.items():
            if not self._may_be_gone(name):
                self._check_messages(driver, name, topic)
        self._check_groups(driver)
        self._check_no_strangers(driver)
        self._check_whole(driver)

    def _check_whole(self, driver: Driver) -> None:
        """A send whose fate was open is there with all that it held, or not at all."""
        there = {body for _, _, bodies in contents(driver) for body in bodies}
        taken = set(self._taken_by_retention(driver))
        for each in self.pending:
            if isinstance(each, Send) and not taken & {(each.topic, queue) for queue, _ in each.parts}:
                sent = {body for _, bodies in each.parts for body in bodies}
                _expect(
                    sent <= there or not sent & there,
                    f"of a send to {each.topic} {len(sent & there)} of {len(sent)} messages are there",
                )

    def _taken_by_retention(self, driver: Driver) -> Iterator[Place]:
        """Yield the queues of which retention has removed messages that were never promised."""
        for name, queue, _ in contents(driver):
            rows = self.topics[name].queues if name in self.topics else []
            promised = len(rows[queue]) if queue < len(rows) else 0
            if driver.store.offsets(name).queues[queue].min > promised:
                yield name, queue

    def _pending_of(self, kind: type, topic: str) -> list[Any]:
        return [each for each in self.pending if isinstance(each, kind) and each.topic == topic]

    def _may_be_gone(self, name: str) -> bool:
        return bool(self._pending_of(Delete, name))

    def _check_topics(self, driver: Driver) -> None:
        there = {config.name: config for config in driver.store.topics()}
        for name, topic in self.topics.items():
            if self._may_be_gone(name):
                continue
            _expect(name in there, f"topic {name} is lost")
            config = there[name]
            _expect(config.incarnation == topic.incarnation, f"topic {name} has another incarnation")
            counts = {len(topic.queues), *(each.queues for each in self._pending_of(Alter, name))}
            _expect(config.queues in counts, f"topic {name} has {config.queues} queues, not {counts}")
        for name in there:
            asked_for = name in self.topics or self._pending_of(Create, name)
            _expect(bool(asked_for), f"topic {name} was deleted, or never created")

    def _check_messages(self, driver: Driver, name: str, topic: Topic) -> None:
        for queue, promised in enumerate(topic.queues):
            low = driver.store.offsets(name).queues[queue].min
            found = driver.bodies(name, queue)
            pending = [
                body
                for each in self._pending_of(Send, name)
                if self._is_admitted(each, topic)
                for target, bodies in each.parts
                if target == queue
                for body in bodies
            ]
            where = f"{name}/{queue}: from {low} on {_short(found)}"
            _expect(low + len(found) >= len(promised), f"{where}, promised were {_short(promised)}")
            for offset, body in enumerate(promised[low:], low):
                _expect(body in (None, found[offset - low]), f"{where}, at {offset} was {body!r}")
            extra = found[max(0, len(promised) - low) :]
            pending = pending[max(0, low - len(promised)) :]
            _expect(
                extra == pending[: len(extra)]
                or (self._pending_of(Alter, name) and _in_order(extra, pending)),
                f"{where}, behind {len(promised)} came {_short(extra)}, no beginning of {_short(pending)}",
            )

    def _is_admitted(self, send: Send, topic: Topic) -> bool:
        """Whether the topic has all its queues; an alteration that is pending leaves that open."""
        return all(queue < len(topic.queues) for queue, _ in send.parts) or bool(
            self._pending_of(Alter, send.topic)
        )

    def _check_groups(self, driver: Driver) -> None:
        for group, table in self.groups.items():
            found = driver.progress(group)
            for (topic, queue), offset in table.items():
                if self._may_be_gone(topic):
                    continue
                allowed = self._reachable(group, (topic, queue), offset)
                now = found.get((topic, queue))
                _expect(
                    now in allowed,
                    f"group {group} is at {now} of {topic}/{queue}, it had committed {sorted(allowed)}",
                )

    def _reachable(self, group: str, place: Place, offset: int) -> set[int]:
        """Return where a group may be that had committed `offset`, for all that is pending."""
        allowed = {offset}
        for each in self.pending:
            if not isinstance(each, Commit) or (each.group, (each.topic, each.queue)) != (group, place):
                continue
            if each.reset or each.offset > min(allowed):
                allowed.add(each.offset)
        return allowed

    def _check_no_strangers(self, driver: Driver) -> None:
        known: Counter[bytes] = Counter()
        for topic in self.topics.values():
            known.update(body for row in topic.queues for body in row if body is not None)
        for entry in self.pending:
            if isinstance(entry, Send):
                known.update(body for _, bodies in entry.parts for body in bodies)
        found: Counter[bytes] = Counter()
        for name, queue, bodies in contents(driver):
            rows = self.topics[name].queues if name in self.topics else []
            row = rows[queue] if queue < len(rows) else []
            # What retention took may come back with its segment if the power goes before that is durable.
            forgotten = sum(body is None for body in row[driver.store.offsets(name).queues[queue].min :])
            found.update(bodies[forgotten:])
        strangers = found - known
        _expect(not strangers, f"these are there twice, or never were sent: {_short(list(strangers))}")

    def adopt(self, driver: Driver) -> None:
        """Take what the store has as what is promised from now on."""
        self.pending.clear()
        self.topics = {
            config.name: Topic(config.incarnation, [[] for _ in range(config.queues)])
            for config in driver.store.topics()
        }
        for name, queue, bodies in contents(driver):
            low = driver.store.offsets(name).queues[queue].min
            self.topics[name].queues[queue] = [*[None] * low, *bodies]
        self.groups = {group: driver.progress(group) for group in driver.store.groups()}


def contents(driver: Driver) -> Iterator[tuple[str, int, list[bytes]]]:
    """Yield every queue of the store with its bodies."""
    for config in driver.store.topics():
        for queue in range(config.queues):
            yield config.name, queue, driver.bodies(config.name, queue)


def _in_order(some: Sequence[bytes | None], all_of: Sequence[bytes]) -> bool:
    rest: Iterator[bytes | None] = iter(all_of)
    return all(body in rest for body in some)


def _expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise BrokenPromise(otherwise)


def _short(bodies: Sequence[bytes | None]) -> str:
    shown = ", ".join((body or b"?")[:12].decode(errors="replace") for body in bodies[:8])
    return f"{len(bodies)} ({shown}{', …' if len(bodies) > 8 else ''})"
