"""Rounds of a proposer, answer by answer."""

from __future__ import annotations

import pytest

from rocketq.errors import RegisterChanged, RegisterUnavailable
from rocketq.protocol.documents.meta_register import (
    NO_BALLOT,
    NO_VALUE,
    AcceptorAnswer,
    Ballot,
    RegisterValue,
)
from rocketq_broker.meta_register.meta_register import Registered
from rocketq_broker.meta_register.proposer import Call, Change, Round

FIRST, SECOND, THIRD = (Ballot(n, "me") for n in (1, 2, 3))
SET = Change("me.1", 0, "record")


def granted(
    acceptor: str, ballot: Ballot, accepted: Ballot = NO_BALLOT, value: RegisterValue = NO_VALUE
) -> AcceptorAnswer:
    return AcceptorAnswer(acceptor, True, ballot, accepted, value)


def refused(acceptor: str, promised: Ballot) -> AcceptorAnswer:
    return AcceptorAnswer(acceptor, False, promised, NO_BALLOT, NO_VALUE)


def begun(change: Change = SET) -> Round:
    return Call("group", change).round(SECOND, 3)


def test_a_majority_of_promises_proposes_and_a_majority_of_acceptances_chooses() -> None:
    one = begun().promised(granted("a", SECOND))
    assert one.proposed is None
    two = one.promised(granted("b", SECOND))
    assert two.proposed == RegisterValue(1, "me.1", "record")
    assert two.took(granted("a", SECOND)).chosen is None
    assert two.took(granted("a", SECOND)).took(granted("c", SECOND)).chosen == two.proposed


def test_two_addresses_of_one_acceptor_count_once() -> None:
    assert begun().promised(granted("a", SECOND)).promised(granted("a", SECOND)).proposed is None
    accepting = begun().promised(granted("a", SECOND)).promised(granted("b", SECOND))
    assert accepting.took(granted("a", SECOND)).took(granted("a", SECOND)).chosen is None


def test_the_value_of_the_highest_ballot_is_taken_over() -> None:
    old, new = RegisterValue(1, "x", "old"), RegisterValue(2, "y", "new")
    read = begun(Change("me.2"))
    both = read.promised(granted("a", SECOND, FIRST, new)).promised(granted("b", SECOND, NO_BALLOT, old))
    assert both.proposed == new


def test_a_round_without_a_majority_is_beaten_and_names_the_ballot_to_exceed() -> None:
    beaten = begun().promised(refused("a", THIRD)).promised(refused("b", FIRST))
    assert not beaten.is_beaten
    assert beaten.promised(refused("c", THIRD)).is_beaten
    assert beaten.highest == THIRD


def test_a_second_copy_of_a_call_that_was_granted_does_not_beat_the_round() -> None:
    twice = (
        begun().promised(granted("a", SECOND)).promised(refused("a", SECOND)).promised(refused("b", SECOND))
    )
    assert not twice.is_beaten
    assert not twice.refused


def test_a_compare_and_set_of_another_version_changes_nothing_and_says_so() -> None:
    there = RegisterValue(4, "x", "other")
    proposed = begun().promised(granted("a", SECOND, FIRST, there)).promised(granted("b", SECOND)).proposed
    assert proposed == there
    with pytest.raises(RegisterChanged, match="version 4"):
        Call("group", SET).outcome(there)


def test_a_call_that_finds_its_own_value_in_a_later_round_has_succeeded() -> None:
    mine = RegisterValue(1, "me.1", "record")
    again = begun().promised(granted("a", SECOND, FIRST, mine)).promised(granted("b", SECOND))
    assert again.proposed == mine
    assert Call("group", SET, is_in_doubt=True).outcome(mine) == Registered(1, "record")


def test_a_call_that_may_have_been_overtaken_says_that_its_outcome_is_unknown() -> None:
    proposed = begun().promised(granted("a", SECOND)).promised(granted("b", SECOND))
    doubtful = Call("group", SET).after(proposed)
    with pytest.raises(RegisterUnavailable):
        doubtful.outcome(RegisterValue(2, "x", "later"))
    with pytest.raises(RegisterChanged):
        doubtful.outcome(RegisterValue(1, "x", "another in its place"))
    with pytest.raises(RegisterChanged):
        Call("group", SET).after(begun()).outcome(RegisterValue(2, "x", "later"))
