"""An acceptor of registers (CASPaxos): it promises ballots, accepts values, and forgets neither.

The decisions are pure functions of what is on disk. `Acceptor` carries them out: each change is on disk
before it is answered. After a failed write it is not known what is on disk, so the acceptor answers nothing
more until it is started again. The other acceptors go on without it.

One acceptor keeps many registers, one for each broker group. They have nothing to do with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from rocketq.errors.replication_errors import AcceptorFailed
from rocketq.protocol.documents.meta_register import (
    NO_BALLOT,
    NO_VALUE,
    AcceptorAnswer,
    AcceptRequest,
    Ballot,
    PrepareRequest,
    RegisterValue,
)


@dataclass(frozen=True, slots=True)
class AcceptorState:
    """One register as an acceptor has it: its highest promise, and the value that it accepted last."""

    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT
    value: RegisterValue = NO_VALUE


def prepared(state: AcceptorState, request: PrepareRequest) -> AcceptorState | None:
    """Return the state after a promise; None if a ballot as high was promised already."""
    if request.ballot <= state.promised:
        return None
    return replace(state, promised=request.ballot)


def accepted(state: AcceptorState, request: AcceptRequest) -> AcceptorState | None:
    """Return the state with a value; None if a higher ballot was promised."""
    if request.ballot < state.promised:
        return None
    return AcceptorState(request.ballot, request.ballot, request.value)


class AcceptorDisk(Protocol):
    """Where an acceptor keeps its registers."""

    #: Names this acceptor; made once, with the directory.
    acceptor: str

    def load(self, register: str) -> AcceptorState:
        """Return a register, as first made if it is not known; raise RocketqError if it is damaged."""
        ...

    def save(self, register: str, state: AcceptorState) -> None:
        """Have a register on disk; raise OSError, after which it is unknown what is there."""
        ...


class Acceptor:
    """The registers of one NameServer. Not thread-safe: one call at a time."""

    def __init__(self, disk: AcceptorDisk) -> None:
        self._disk = disk
        self._registers: dict[str, AcceptorState] = {}
        self._failure = ""

    def prepare(self, register: str, request: PrepareRequest) -> AcceptorAnswer:
        """Answer the first call of a round; raise AcceptorFailed."""
        return self._answer(register, prepared(self._state(register), request))

    def accept(self, register: str, request: AcceptRequest) -> AcceptorAnswer:
        """Answer the second call of a round; raise AcceptorFailed."""
        return self._answer(register, accepted(self._state(register), request))

    def _state(self, register: str) -> AcceptorState:
        if self._failure:
            raise AcceptorFailed(register, self._failure)
        if register not in self._registers:
            self._registers[register] = self._disk.load(register)
        return self._registers[register]

    def _answer(self, register: str, after: AcceptorState | None) -> AcceptorAnswer:
        if after is not None:
            try:
                self._disk.save(register, after)
            except OSError as error:
                self._failure = str(error)
                raise AcceptorFailed(register, self._failure) from error
            self._registers[register] = after
        state = self._registers[register]
        return AcceptorAnswer(
            self._disk.acceptor, after is not None, state.promised, state.accepted, state.value
        )
