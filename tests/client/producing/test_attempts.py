"""What follows from each error of a send (RocketMQ: DefaultMQProducerImpl), and the time of an attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    Conflict,
    InternalError,
    InvalidBatch,
    InvalidName,
    InvalidRequest,
    MethodNotAllowed,
    NameServersUnreachable,
    NoPermission,
    QueueNotFound,
    RocketqError,
    RouteNotFound,
    StoreFull,
    SystemBusy,
    TooLarge,
    TooManyConnections,
    TooSlow,
    TopicNotFound,
)
from rocketq.producing.attempts.attempt_rules import Trip, Verdict, attempt_ms, staying, verdict

REFUSED_FOR_WHAT_IT_SAYS = [
    InvalidBatch("bad"),
    MethodNotAllowed("PUT", "/v1/x"),
    TooLarge("body", 2, 1),
    InvalidRequest("queue", "bad"),
    InvalidName("topic", "?"),
    Conflict("a", "b"),
    RouteNotFound("t"),
    NameServersUnreachable({}),
]
SURELY_NOT_STORED = [
    SystemBusy("full", 10),
    BrokerUnavailable("a", "draining"),
    StoreFull("a", 99),
    TooSlow("the body", 10),
    TooManyConnections(1_000),
    BrokerUnreachable("a", "http://a", "refused", sent=False),
]
PERHAPS_STORED = [BrokerUnreachable("a", "http://a", "reset"), InternalError("t-1")]
ROUTE_IS_OLD = [TopicNotFound("t", "a"), QueueNotFound("t", 4, 4), NoPermission("sending", "t")]


@pytest.mark.parametrize("error", REFUSED_FOR_WHAT_IT_SAYS, ids=lambda e: e.code)
def test_a_refusal_of_the_message_itself_is_raised_at_once(error: RocketqError) -> None:
    assert verdict(error, ordered=False) is verdict(error, ordered=True) is Verdict.RAISE


@pytest.mark.parametrize("error", SURELY_NOT_STORED, ids=lambda e: e.code)
def test_what_is_surely_not_stored_goes_elsewhere_or_again_to_its_queue(error: RocketqError) -> None:
    assert verdict(error, ordered=False) is Verdict.ELSEWHERE
    assert verdict(error, ordered=True) is Verdict.AGAIN


@pytest.mark.parametrize("error", PERHAPS_STORED, ids=lambda e: e.code)
def test_what_may_be_stored_is_repeated_only_where_order_does_not_matter(error: RocketqError) -> None:
    assert verdict(error, ordered=False) is Verdict.ELSEWHERE
    assert verdict(error, ordered=True) is Verdict.GIVE_UP


@pytest.mark.parametrize("error", PERHAPS_STORED, ids=lambda e: e.code)
def test_what_is_staged_is_sent_again_even_if_it_is_perhaps_stored(error: RocketqError) -> None:
    assert verdict(error, ordered=False, repeatable=True) is Verdict.ELSEWHERE
    assert verdict(error, ordered=True, repeatable=True) is Verdict.AGAIN


@pytest.mark.parametrize("error", PERHAPS_STORED, ids=lambda e: e.code)
def test_a_numbered_send_is_repeated_at_the_broker_that_may_have_stored_it(error: RocketqError) -> None:
    once = Trip(0, 3_000, 2).after("a", error)
    for ordered in (False, True):
        decision = verdict(error, ordered, numbered=True)
        assert staying(decision, once, "a", must_stay=ordered, others=True) is Verdict.HERE
    assert staying(Verdict.RAISE, once, "a", must_stay=True, others=True) is Verdict.RAISE


@pytest.mark.parametrize("second", [*PERHAPS_STORED, *SURELY_NOT_STORED], ids=lambda e: e.code)
def test_a_numbered_send_in_any_order_leaves_a_broker_that_failed_twice(second: RocketqError) -> None:
    twice = Trip(0, 3_000, 2).after("a", InternalError("t")).after("a", second)
    assert staying(Verdict.ELSEWHERE, twice, "a", must_stay=False, others=True) is Verdict.ELSEWHERE
    assert staying(Verdict.ELSEWHERE, twice, "a", must_stay=False, others=False) is Verdict.HERE
    assert staying(Verdict.AGAIN, twice, "a", must_stay=True, others=True) is Verdict.HERE
    elsewhere = twice.after("b", SystemBusy("full", 1))
    assert staying(Verdict.ELSEWHERE, elsewhere, "b", must_stay=False, others=True) is Verdict.ELSEWHERE


def test_the_last_attempt_of_a_numbered_send_goes_to_another_broker() -> None:
    trip = Trip(0, 3_000, 1).after("a", InternalError("t"))
    assert staying(Verdict.ELSEWHERE, trip, "a", must_stay=False, others=True) is Verdict.ELSEWHERE


def test_an_attempt_that_asks_again_leaves_time_for_another_broker() -> None:
    assert attempt_ms(1_500, 3_000, 2, others=True, asks_again=True) == 750
    assert attempt_ms(1_500, 3_000, 1, others=True, asks_again=True) == 1_500


@pytest.mark.parametrize("error", ROUTE_IS_OLD, ids=lambda e: e.code)
def test_an_old_route_is_asked_for_again(error: RocketqError) -> None:
    assert verdict(error, ordered=False) is verdict(error, ordered=True) is Verdict.NEW_ROUTE


@pytest.mark.parametrize(
    ("left_ms", "timeout_ms", "attempts_left", "others", "expected_ms"),
    [
        (3_000, 3_000, 3, True, 1_000),  # the default: three even shares
        (2_000, 3_000, 2, True, 1_000),
        (1_000, 3_000, 1, True, 1_000),
        (3_000, 3_000, 3, False, 3_000),  # one broker: RocketMQ's whole time
        (30_000, 30_000, 1_001, True, 10_000),  # Spark's sink: a third of what is left
        (20_000, 30_000, 1_000, True, 6_666),
        (2_900, 30_000, 998, True, 2_900),  # the next one would have less than the least
        (30_000, 30_000, 1_001, False, 10_000),
        (500, 500, 3, True, 166),
        (0, 500, 3, True, 1),
    ],
)
def test_an_attempt_gets_its_share_of_the_time(
    left_ms: int, timeout_ms: int, attempts_left: int, others: bool, expected_ms: int
) -> None:
    assert attempt_ms(left_ms, timeout_ms, attempts_left, others) == expected_ms


@given(
    timeout_ms=st.integers(1, 100_000),
    retries=st.integers(0, 1_000),
    others=st.booleans(),
)
def test_attempts_that_take_their_whole_share_use_exactly_the_time(
    timeout_ms: int, retries: int, others: bool
) -> None:
    left_ms, shares = timeout_ms, []
    while left_ms > 0 and len(shares) <= retries:
        shares.append(attempt_ms(left_ms, timeout_ms, retries + 1 - len(shares), others))
        left_ms -= shares[-1]
    assert left_ms == 0
    assert len(shares) <= 20, "the last shares do not become ever smaller"


def test_a_trip_remembers_whether_any_attempt_may_have_been_stored() -> None:
    trip = Trip(0, 3_000, 2)
    for error in SURELY_NOT_STORED + ROUTE_IS_OLD:
        trip = trip.after("a", error)
    assert not trip.may_be_stored
    for error in PERHAPS_STORED:
        assert trip.after("a", error).after("b", SystemBusy("full", 1)).may_be_stored
