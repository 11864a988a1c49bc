"""A register under faults, from a seed: the product's proposer and acceptors; calls that are lost, late and
doubled.

Acceptors crash, also in the middle of a write, and come back with what their disk has. Four proposers read
and set the register as they like. In the end the history of all calls must be that of one register: a
version has one value, a call sees what was set before it began, and each value was set on the version
before it.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketq.errors.replication_errors import AcceptorFailed, RegisterChanged, RegisterUnavailable
from rocketq.protocol.documents.meta_register import AcceptorAnswer, AcceptRequest, Ballot, PrepareRequest
from rocketq_broker.meta_register.meta_register import Registered
from rocketq_broker.meta_register.proposer import Call, Change, Round
from rocketq_nameserver.meta_register.acceptor import Acceptor, AcceptorState

REGISTER = "cluster/broker"
ACCEPTORS = 3
PROPOSERS = 4


class SimDisk:
    """What an acceptor has on disk. A write may be cut off by a crash, before it or after it has happened."""

    def __init__(self, acceptor: str, rng: random.Random) -> None:
        self.acceptor = acceptor
        self.rng = rng
        self.stored = AcceptorState()
        self.crash_chance = 0.0

    def load(self, register: str) -> AcceptorState:
        return self.stored

    def save(self, register: str, state: AcceptorState) -> None:
        if self.rng.random() < self.crash_chance:
            self.stored = self.rng.choice([self.stored, state])
            raise OSError("the machine went down")
        self.stored = state


class SimAcceptor:
    """One acceptor process, which is up or down."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.is_up = True
        self.acceptor = Acceptor(disk)

    def start(self) -> None:
        self.acceptor, self.is_up = Acceptor(self.disk), True

    def call(self, request: PrepareRequest | AcceptRequest) -> AcceptorAnswer:
        if isinstance(request, PrepareRequest):
            return self.acceptor.prepare(REGISTER, request)
        return self.acceptor.accept(REGISTER, request)


@dataclass(slots=True)
class Record:
    """One call in the history; `ended` is None while its outcome is unknown."""

    change: Change
    began: float
    ended: float | None = None
    found: Registered | None = None
    is_refused: bool = False


@dataclass(slots=True)
class Proposer:
    """One proposer: its ballots rise."""

    name: str
    highest: int = 0
    history: list[Record] = field(default_factory=list)

    def next_ballot(self) -> Ballot:
        self.highest += 1
        return Ballot(self.highest, self.name)


class RegisterSimulation:
    """One run; `run` returns what is wrong with the history."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.acceptors = [SimAcceptor(SimDisk(f"acceptor-{n}", rng)) for n in range(ACCEPTORS)]
        self.proposers = [Proposer(f"proposer-{n}") for n in range(PROPOSERS)]
        self.history: list[Record] = []
        self.now = 0.0
        self.calls: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.loss = rng.choice([0, 0.1, 0.3])
        self.doubling = rng.choice([0, 0.1])
        self.delay_max = rng.choice([2, 20])
        self.gap = rng.choice([3, 10, 30, 60])
        self.crashes = 0

    def at(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.calls, (self.now + delay, next(self.order), call))

    def send(
        self, place: int, request: PrepareRequest | AcceptRequest, take: Callable[[AcceptorAnswer], None]
    ) -> None:
        def reach() -> None:
            acceptor = self.acceptors[place]
            if not acceptor.is_up:
                return
            try:
                answer = acceptor.call(request)
            except AcceptorFailed:
                self.crash(acceptor)
                return
            if self.rng.random() >= self.loss:
                self.at(self.rng.uniform(0.1, self.delay_max), lambda: take(answer))

        for _ in range(2 if self.rng.random() < self.doubling else 1):
            if self.rng.random() >= self.loss:
                self.at(self.rng.uniform(0.1, self.delay_max), reach)

    def crash(self, acceptor: SimAcceptor) -> None:
        self.crashes += 1
        acceptor.is_up = False
        self.at(self.rng.choice([0.5, 5, 30]), acceptor.start)

    def begin(self, proposer: Proposer, change: Change) -> None:
        record = Record(change, self.now)
        self.history.append(record)
        proposer.history.append(record)
        self.round(proposer, record, Call(REGISTER, change), rounds_left=2)

    def round(self, proposer: Proposer, record: Record, call: Call, rounds_left: int) -> None:
        """Carry out one round, and begin the next one if it is beaten or nobody answers."""
        state = [call.round(proposer.next_ballot(), ACCEPTORS)]
        is_over = [False]

        def end(current: Round) -> None:
            if current.chosen is not None:
                is_over[0] = True
                self.finish(record, call, current)
            elif current.is_beaten:
                again(current)

        def again(current: Round) -> None:
            if is_over[0]:
                return
            is_over[0] = True
            proposer.highest = max(proposer.highest, current.highest.number)
            if rounds_left:
                after = call.after(current)
                delay = self.rng.uniform(0, 4 * self.delay_max)
                self.at(delay, lambda: self.round(proposer, record, after, rounds_left - 1))

        def promised(answer: AcceptorAnswer) -> None:
            if is_over[0]:
                return
            was_proposed = state[0].proposed is not None
            state[0] = state[0].promised(answer)
            proposed = state[0].proposed
            if proposed is not None and not was_proposed:
                for place in range(ACCEPTORS):
                    self.send(place, AcceptRequest(state[0].ballot, proposed), took)
            end(state[0])

        def took(answer: AcceptorAnswer) -> None:
            if not is_over[0]:
                state[0] = state[0].took(answer)
                end(state[0])

        for place in range(ACCEPTORS):
            self.send(place, PrepareRequest(state[0].ballot), promised)
        self.at(4 * self.delay_max, lambda: again(state[0]))

    def finish(self, record: Record, call: Call, ended: Round) -> None:
        chosen = ended.chosen
        assert chosen is not None
        try:
            call.outcome(chosen)
        except RegisterChanged:
            record.is_refused = True
        except RegisterUnavailable:
            return
        record.ended, record.found = self.now, Registered(chosen.version, chosen.author)

    def known(self) -> int:
        """A version that some call has found, for a compare-and-set that may succeed."""
        return max((r.found.version for r in self.history if r.found is not None), default=0)

    def run(self, steps: int = 300) -> str:
        authors = itertools.count()
        for _ in range(steps):
            self._pass_time(self.now + self.gap)
            chance, proposer = self.rng.random(), self.rng.choice(self.proposers)
            author = f"{proposer.name}.{next(authors)}"
            if chance < 0.3:
                self.begin(proposer, Change(author))
            elif chance < 0.6:
                self.begin(proposer, Change(author, self.known(), author))
            elif chance < 0.68:
                acceptor = self.rng.choice(self.acceptors)
                if all(each.is_up for each in self.acceptors) or (self.rng.random() < 0.3 and acceptor.is_up):
                    self.crash(acceptor)
            for each in self.acceptors:
                each.disk.crash_chance = 0.01
        self.loss = 0
        while self.calls:
            self._pass_time(self.calls[0][0])
        return self.fault()

    def _pass_time(self, until: float) -> None:
        while self.calls and self.calls[0][0] <= until:
            self.now, _, call = heapq.heappop(self.calls)
            call()
        self.now = until

    def fault(self) -> str:
        """Say why the history is not that of one register; empty if it is."""
        done = sorted((r for r in self.history if r.found is not None), key=lambda r: r.ended or 0)
        authors: dict[int, str] = {0: ""}
        for record in done:
            version, author = record.found or Registered(0, "")
            if authors.setdefault(version, author) != author:
                return f"two values have version {version}"
        highest, ends, seen = 0, [], []
        for record in done:
            highest = max(highest, record.found.version if record.found else 0)
            ends.append(record.ended or 0)
            seen.append(highest)
        by_author = {record.change.author: record for record in self.history}
        for record in done:
            place = bisect.bisect_left(ends, record.began) - 1
            if place >= 0 and record.found and record.found.version < seen[place]:
                return "a call did not see what was set before it began"
            expected = record.change.expected
            is_set = expected is not None and not record.is_refused
            if is_set and record.found and record.found != (expected + 1, record.change.author):  # type: ignore[operator]
                return "a call that succeeded did not set its value"
        for version, author in authors.items():
            if version and by_author[author].change.expected != version - 1:
                return "a value was set on another version than it named"
        return ""
