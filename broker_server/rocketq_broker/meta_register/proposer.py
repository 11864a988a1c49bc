"""A proposer of a register (CASPaxos), without I/O: rounds, and what a call came to.

A call is a change of the value: a compare-and-set, or, for a read, no change. A round carries it out in one
ballot. *First* it has a majority of the acceptors promise the ballot. The value of the highest ballot among
their answers is the present one, for any value that was chosen was accepted by a majority, and two
majorities share an acceptor. *Then* it has a majority accept the changed value. A read also writes what it
has read, so a value that only a minority had is settled once and for all.

A round that meets a higher ballot is beaten, and the call begins another one. Its first round may have come
so far that another proposer completes it. So each value has its author: a call that finds its own value has
succeeded, in whichever round. If it finds a later version instead, nobody can say whether its value was in
between, and it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rocketq.errors.replication_errors import RegisterChanged, RegisterUnavailable
from rocketq.protocol.documents.meta_register import NO_BALLOT, AcceptorAnswer, Ballot, RegisterValue
from rocketq_broker.meta_register.meta_register import Registered


@dataclass(frozen=True, slots=True)
class Change:
    """What a call does to the value; `expected` None reads. `author` is unlike that of every other call."""

    author: str
    expected: int | None = None
    record: str = ""

    def applied_to(self, value: RegisterValue) -> RegisterValue:
        """Return the value that the call proposes."""
        if self.expected is None or value.version != self.expected:
            return value
        return RegisterValue(value.version + 1, self.author, self.record)


@dataclass(frozen=True, slots=True)
class Round:
    """One attempt, in one ballot. `proposed` is None until a majority has promised."""

    ballot: Ballot
    acceptors: int
    change: Change
    promises: Mapping[str, AcceptorAnswer] = field(default_factory=dict)
    proposed: RegisterValue | None = None
    accepted: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    #: The highest ballot that was met, for the next round.
    highest: Ballot = NO_BALLOT

    @property
    def quorum(self) -> int:
        return self.acceptors // 2 + 1

    @property
    def chosen(self) -> RegisterValue | None:
        """The value of the register, once a majority has accepted it."""
        return self.proposed if len(self.accepted) >= self.quorum else None

    @property
    def is_beaten(self) -> bool:
        """Whether too many acceptors have promised a higher ballot."""
        return len(self.refused) > self.acceptors - self.quorum

    def promised(self, answer: AcceptorAnswer) -> Round:
        """Take an answer to the first call; it counts until the value is proposed."""
        if not answer.is_granted:
            return self._refused(answer)
        if self.proposed is not None:
            return self
        after = replace(self, promises={**self.promises, answer.acceptor: answer})
        if len(after.promises) < self.quorum:
            return after
        return replace(after, proposed=self.change.applied_to(after.newest()))

    def newest(self) -> RegisterValue:
        """Return the value of the highest ballot among those who promised."""
        return max(self.promises.values(), key=lambda answer: answer.accepted).value

    def took(self, answer: AcceptorAnswer) -> Round:
        """Take an answer to the second call."""
        if not answer.is_granted:
            return self._refused(answer)
        return replace(self, accepted=self.accepted | {answer.acceptor})

    def _refused(self, answer: AcceptorAnswer) -> Round:
        if answer.promised <= self.ballot:
            return self  # a second copy of a call that was granted
        highest = max(self.highest, answer.promised)
        return replace(self, refused=self.refused | {answer.acceptor}, highest=highest)


@dataclass(frozen=True, slots=True)
class Call:
    """One call through as many rounds as it takes."""

    register: str
    change: Change
    #: Whether an earlier round asked for its value to be accepted, so that it may be chosen.
    is_in_doubt: bool = False

    def round(self, ballot: Ballot, acceptors: int) -> Round:
        return Round(ballot, acceptors, self.change)

    def after(self, ended: Round) -> Call:
        """Return the call after a round without an outcome."""
        has_proposed = ended.proposed is not None and ended.proposed.author == self.change.author
        return replace(self, is_in_doubt=self.is_in_doubt or has_proposed)

    def outcome(self, chosen: RegisterValue) -> Registered:
        """Say what the call came to, from the value that a round has chosen.

        Raises RegisterChanged, and RegisterUnavailable if it cannot be known whether the change took effect.
        """
        expected = self.change.expected
        found = Registered(chosen.version, chosen.record)
        if expected is None or chosen.author == self.change.author:
            return found
        if self.is_in_doubt and chosen.version > expected + 1:
            raise RegisterUnavailable(self.register, f"it has version {chosen.version} by now")
        raise RegisterChanged(self.register, expected, chosen.version)
