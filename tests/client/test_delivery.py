"""What follows from each error of a send (RocketMQ: DefaultMQProducerImpl's retry rules)."""

from __future__ import annotations

import pytest

from rocketq.delivery import Verdict, verdict
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


@pytest.mark.parametrize("error", ROUTE_IS_OLD, ids=lambda e: e.code)
def test_an_old_route_is_asked_for_again(error: RocketqError) -> None:
    assert verdict(error, ordered=False) is verdict(error, ordered=True) is Verdict.NEW_ROUTE
