"""The register's rules with one of them broken: the simulation must find each of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rocketq.protocol.documents.meta_register import PrepareRequest
from rocketq_broker.meta_register.proposer import Call, Round
from rocketq_nameserver.meta_register import acceptor
from tests.meta_register.simulation import Record, RegisterSimulation, SimDisk


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule, and a seed from which on it soon shows."""

    name: str
    breaks: Callable[[pytest.MonkeyPatch], None]
    seed: int


def _promise_not_kept(patch: pytest.MonkeyPatch) -> None:
    def save(self: SimDisk, register: str, state: Any) -> None:
        if state.accepted != self.stored.accepted:
            self.stored = state

    patch.setattr(SimDisk, "save", save)


def _value_not_kept(patch: pytest.MonkeyPatch) -> None:
    def save(self: SimDisk, register: str, state: Any) -> None:
        self.stored = replace(self.stored, promised=state.promised)

    patch.setattr(SimDisk, "save", save)


def _no_ballot_check(patch: pytest.MonkeyPatch) -> None:
    def accepted(state: Any, request: Any) -> Any:
        promised = max(state.promised, request.ballot)
        return acceptor.AcceptorState(promised, request.ballot, request.value)

    patch.setattr(acceptor, "accepted", accepted)


def _takes_any_value(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "newest", lambda self: next(iter(self.promises.values())).value)


def _one_promise_is_enough(patch: pytest.MonkeyPatch) -> None:
    def promised(self: Round, answer: Any) -> Round:
        if not answer.is_granted or self.proposed is not None:
            return self
        return replace(self, proposed=self.change.applied_to(answer.value))

    patch.setattr(Round, "promised", promised)


def _reads_one_acceptor(patch: pytest.MonkeyPatch) -> None:
    real = RegisterSimulation.round

    def round_(self: RegisterSimulation, proposer: Any, record: Record, call: Call, rounds_left: int) -> None:
        if call.change.expected is not None:
            real(self, proposer, record, call, rounds_left)
            return

        def take(answer: Any) -> None:
            ended = replace(
                call.round(proposer.next_ballot(), 1), proposed=answer.value, accepted=frozenset("a")
            )
            self.finish(record, call, ended)

        self.send(self.rng.randrange(3), PrepareRequest(proposer.next_ballot()), take)

    patch.setattr(RegisterSimulation, "round", round_)


def _one_acceptance_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "chosen", property(lambda self: self.proposed if self.accepted else None))


def _doubt_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Call, "after", lambda self, ended: self)


MUTANTS = (
    Mutant("a promise is not on disk", _promise_not_kept, 326),
    Mutant("an accepted value is not on disk", _value_not_kept, 0),
    Mutant("a lower ballot is accepted", _no_ballot_check, 0),
    Mutant("the accepted value of the highest ballot is not taken over", _takes_any_value, 0),
    Mutant("one promise is enough", _one_promise_is_enough, 0),
    Mutant("one acceptance is enough", _one_acceptance_is_enough, 0),
    Mutant("a read asks one acceptor", _reads_one_acceptor, 0),
)
