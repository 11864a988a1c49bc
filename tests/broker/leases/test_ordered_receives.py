"""Ordered receives: a queue of which messages are leased gives no others, and nothing passes anything."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rocketq.protocol.documents.groups import SetGroupRequest
from tests.broker.data_plane.test_pull import wait_until_held
from tests.broker.groups.scripted_member import GroupMember
from tests.broker.leases.test_lease_routes import ack, change, handles, make_visible, post, receive
from tests.support.http_client import Http, numbered, stream


@pytest.fixture
def queue(broker: Http) -> Http:
    """Nine messages in one queue of `orders`."""
    broker.send("orders", stream(numbered(9)), "?queue=1")
    return broker


def ordered(broker: Http, count: int = 100, **more: Any) -> list[dict[str, Any]]:
    return receive(broker, max_messages=count, ordered=True, **more)


def places(messages: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(each["offset"], each["attempt"]) for each in messages]


def test_a_queue_gives_nothing_while_messages_of_it_are_leased(queue: Http) -> None:
    first = ordered(queue, 3)
    assert places(first) == [(0, 1), (1, 1), (2, 1)]
    assert ordered(queue) == []
    ack(queue, *handles(first)[:2])
    assert ordered(queue) == [], "one is still leased"
    ack(queue, handles(first)[2])
    assert places(ordered(queue, 2)) == [(3, 1), (4, 1)]


def test_other_queues_go_on(queue: Http) -> None:
    queue.send("orders", stream(numbered(1)), "?queue=2")
    first, second = ordered(queue, 1), ordered(queue, 1)
    assert {each["queue"] for each in first + second} == {1, 2}
    assert ordered(queue) == []


def test_what_was_made_visible_comes_again_before_anything_new(queue: Http) -> None:
    first = handles(ordered(queue, 4))
    ack(queue, first[1])
    make_visible(queue, first[3])
    assert ordered(queue) == [], "two are leased, and 3 must not pass them"
    make_visible(queue, first[0], first[2])
    assert places(ordered(queue, 2)) == [(0, 2), (2, 2)]
    assert ordered(queue) == [], "3 has run out, and waits for those before it"


def test_a_receive_is_held_until_the_queue_is_settled(queue: Http) -> None:
    first = handles(ordered(queue, 3))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ordered, queue, 2, wait_ms=20_000)
        wait_until_held(queue, 1)
        ack(queue, *first)
        assert places(waiting.result(60)) == [(3, 1), (4, 1)]


def test_a_receive_is_held_until_the_last_lease_of_the_queue_runs_out(queue: Http) -> None:
    first = handles(ordered(queue, 2))
    make_visible(queue, first[1])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ordered, queue, 9, wait_ms=20_000)
        wait_until_held(queue, 1)
        change(queue, 0, first[0])
        assert places(waiting.result(60)) == [(0, 2), (1, 2)]


def test_the_groups_setting_counts(queue: Http) -> None:
    member = GroupMember(queue.address, 1, "billing")
    member.api.set_group("billing", SetGroupRequest(ordered=True))
    assert places(receive(queue, max_messages=1)) == [(0, 1)]
    assert receive(queue) == [], "no receive of the group passes it"
    member.api.set_group("billing", SetGroupRequest(ordered=False))
    refused = post(queue, "receives", topic="orders", ordered=True)
    assert refused.status == 400
    assert "does not consume in order" in str(refused.json)
    member.close()


def test_dead_letters_leave_the_queue_in_order(queue: Http) -> None:
    member = GroupMember(queue.address, 1, "billing")
    member.api.set_group("billing", SetGroupRequest(retries_max=0))
    make_visible(queue, *handles(ordered(queue, 2)))
    assert places(ordered(queue, 2)) == [(2, 1), (3, 1)]
    assert queue.total("%25DLQ%25billing") == 2
    member.close()


@pytest.mark.parametrize("seed", range(3))
def test_receivers_that_settle_and_make_visible_at_random_see_the_order_of_the_queue(
    queue: Http, seed: int
) -> None:
    """A model of one queue: what is leased, what was made visible again, and where nothing was leased yet."""
    chance = random.Random(seed)
    leased: dict[int, str] = {}
    back: set[int] = set()
    attempts = dict.fromkeys(range(9), 0)
    next_offset = 0
    while next_offset < 9 or leased or back:
        if leased and chance.random() < 0.7:
            offset = chance.choice(sorted(leased))
            handle = leased.pop(offset)
            if chance.random() < 0.6:
                assert ack(queue, handle).json["acknowledged"] == 1
            else:
                make_visible(queue, handle)
                back.add(offset)
            continue
        count = chance.randint(1, 4)
        expected = sorted(back)[:count] or list(range(next_offset, min(9, next_offset + count)))
        found = ordered(queue, count)
        if leased:
            assert found == []
            continue
        for offset in expected:
            attempts[offset] += 1
        assert places(found) == [(offset, attempts[offset]) for offset in expected]
        leased = {each["offset"]: each["receipt_handle"] for each in found}
        next_offset = max(next_offset, expected[-1] + 1)
        back -= set(expected)
