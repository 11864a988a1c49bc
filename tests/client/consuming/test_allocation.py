"""Allocation: every queue has one owner, all members agree, shares are even, and little moves."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.consuming.allocation.machine_rooms import MachineRoom, MachineRoomNearby
from rocketq.consuming.allocation.strategies import STRATEGIES, Configured, strategy_of
from rocketq.consuming.allocation.view import AllocationStrategy, GroupView, group_view
from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue

#: Strategies whose members differ by one queue at most.
EVEN: Final = ("sticky", "average", "circle")


def queue(text: str, topic: str = "T") -> MessageQueue:
    """`a3` is queue 3 of broker-a; `r1@a3` of the broker r1@a."""
    name, number = text[:-1], int(text[-1])
    return MessageQueue(topic, name if "@" in name else f"broker-{name}", number)


def queues_of(count: int) -> list[MessageQueue]:
    """The first half on broker-a, the rest on broker-b."""
    half = (count + 1) // 2
    return [queue(f"a{n}") for n in range(half)] + [queue(f"b{n}") for n in range(count - half)]


def written(strategy: AllocationStrategy, view: GroupView) -> str:
    """Each member's queues, as the table below has them."""
    shares = (strategy(view, member) for member in view.members)
    return " · ".join(" ".join(f"{q.broker[-1]}{q.queue}" for q in share) or "–" for share in shares)


@pytest.mark.parametrize(
    ("queues", "members", "average", "circle", "consistent_hash"),
    [
        (10, 4, "a0 a1 a2 · a3 a4 b0 · b1 b2 · b3 b4", "a0 a4 b3 · a1 b0 b4 · a2 b1 · a3 b2",
         "a1 a2 b0 b3 · a0 a4 b1 b4 · b2 · a3"),
        (8, 3, "a0 a1 a2 · a3 b0 b1 · b2 b3", "a0 a3 b2 · a1 b0 b3 · a2 b1", "a1 a2 b0 b3 · a0 b1 · a3 b2"),
        (2, 4, "a0 · b0 · – · –", "a0 · b0 · – · –", "b0 · a0 · – · –"),
        (6, 4, "a0 a1 · a2 b0 · b1 · b2", "a0 b1 · a1 b2 · a2 · b0", "a1 a2 b0 · a0 b1 · b2 · –"),
        (12, 5, "a0 a1 a2 · a3 a4 a5 · b0 b1 · b2 b3 · b4 b5", "a0 a5 b4 · a1 b0 b5 · a2 b1 · a3 b2 · a4 b3",
         "a1 a2 b0 b3 · a4 b1 · – · a3 a5 · a0 b2 b4 b5"),
    ],
)  # fmt: skip
def test_allocations_are_those_of_rocketmq(
    queues: int, members: int, average: str, circle: str, consistent_hash: str
) -> None:
    view = group_view(queues_of(queues), [f"10.0.0.{n}@1" for n in range(members)])
    found = {name: written(STRATEGIES[name], view) for name in ("average", "circle", "consistent_hash")}
    assert found == {"average": average, "circle": circle, "consistent_hash": consistent_hash}


def test_a_machine_room_gives_what_is_left_over_from_the_tail_as_rocketmq() -> None:
    queues = [queue(f"r1@a{n}") for n in range(5)] + [queue(f"r2@b{n}") for n in range(3)]
    view = group_view(queues, ["one", "two"])
    assert written(MachineRoom({"r1"}), view) == "a0 a1 a4 · a2 a3"


def test_queues_of_a_room_go_to_its_members_and_others_to_all() -> None:
    queues = [queue(f"{room}@a{n}") for room in ("r1", "r2", "r3") for n in range(4)]
    view = group_view(queues, ["r1@x", "r1@y", "r2@z"])
    shares = {member: MachineRoomNearby()(view, member) for member in view.members}
    rooms = {member: Counter(q.broker[:2] for q in share) for member, share in shares.items()}
    assert rooms == {"r1@x": {"r1": 2, "r3": 2}, "r1@y": {"r1": 2, "r3": 1}, "r2@z": {"r2": 4, "r3": 1}}


def test_a_room_can_be_given_by_a_function() -> None:
    rooms = {"broker-a": "north", "broker-b": "south"}
    view = group_view(queues_of(8), ["one", "two"])
    found = MachineRoom({"south"}, rooms.__getitem__)
    assert written(found, view) == "b0 b1 · b2 b3"
    with pytest.raises(InvalidConfiguration, match="machine room"):
        MachineRoom({"south"})(view, "one")


def test_configured_queues_are_those_whatever_the_members() -> None:
    chosen = Configured([queue("a1"), queue("b0"), queue("b0", topic="other")])
    view = group_view(queues_of(4), ["one", "two"])
    assert chosen(view, "one") == chosen(view, "three") == (queue("a1"), queue("b0"))


@pytest.mark.parametrize(("queues", "members"), [([], ["m"]), ([queue("a0")], []), ([queue("a0")], [""])])
def test_nothing_to_allocate_is_an_error(queues: list[MessageQueue], members: list[str]) -> None:
    with pytest.raises(InvalidConfiguration):
        group_view(queues, members)


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfiguration, match="fair"):
        strategy_of("fair")
    assert strategy_of("circle") is STRATEGIES["circle"]


NAMES: Final = st.text("abcdef", min_size=1, max_size=4)


@st.composite
def views(draw: st.DrawFn) -> GroupView:
    """Any queues and members, each queue owned by a member, by somebody who is gone, or by nobody."""
    queues = [MessageQueue("T", draw(st.sampled_from("xyz")), n) for n in range(draw(st.integers(1, 24)))]
    members = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    owner = st.sampled_from([*members, "gone"])
    return group_view(queues, members, draw(st.dictionaries(st.sampled_from(queues), owner)))


def allocation(strategy: AllocationStrategy, view: GroupView) -> dict[MessageQueue, str]:
    """The owner of each queue; no queue may have two."""
    found: dict[MessageQueue, str] = {}
    for member in view.members:
        for one in strategy(view, member):
            assert found.setdefault(one, member) == member
    return found


@pytest.mark.parametrize("name", STRATEGIES)
@given(view=views())
def test_every_queue_has_exactly_one_owner(name: str, view: GroupView) -> None:
    assert set(allocation(STRATEGIES[name], view)) == set(view.queues)
    assert STRATEGIES[name](view, "not a member") == ()


@given(view=views())
def test_every_queue_near_or_far_has_exactly_one_owner(view: GroupView) -> None:
    nearby = MachineRoomNearby(
        room_of_broker=lambda broker: broker, room_of_member=lambda member: "xyz"[len(member) % 3]
    )
    assert set(allocation(nearby, view)) == set(view.queues)


@pytest.mark.parametrize("name", EVEN)
@given(view=views())
def test_shares_differ_by_one_queue_at_most(name: str, view: GroupView) -> None:
    sizes = [len(STRATEGIES[name](view, member)) for member in view.members]
    assert max(sizes) - min(sizes) <= 1


@given(view=views())
def test_sticky_moves_as_few_queues_as_even_shares_allow(view: GroupView) -> None:
    found = allocation(STRATEGIES["sticky"], view)
    stayed = sum(found[one] == owner for one, owner in view.owners.items())
    size, extra = divmod(len(view.queues), len(view.members))
    owned = sorted((sum(o == m for o in view.owners.values()) for m in view.members), reverse=True)
    assert stayed == sum(min(count, size + (place < extra)) for place, count in enumerate(owned))


@given(view=views())
def test_sticky_changes_nothing_once_all_have_what_it_gave(view: GroupView) -> None:
    settled = GroupView(view.queues, view.members, allocation(STRATEGIES["sticky"], view))
    assert allocation(STRATEGIES["sticky"], settled) == settled.owners


@given(view=views(), leaver=st.integers(0, 7))
def test_a_hash_moves_only_queues_of_the_member_that_left(view: GroupView, leaver: int) -> None:
    gone = view.members[leaver % len(view.members)]
    rest = tuple(member for member in view.members if member != gone)
    if rest:
        before = allocation(STRATEGIES["consistent_hash"], view)
        after = allocation(STRATEGIES["consistent_hash"], GroupView(view.queues, rest))
        assert all(after[one] == owner for one, owner in before.items() if owner != gone)


def test_the_odd_queues_of_many_topics_do_not_all_go_to_one_member() -> None:
    members = [f"m{n}" for n in range(4)]
    views = [group_view([queue("a0", topic=f"topic-{n}")], members) for n in range(40)]
    owners = Counter(owner for view in views for owner in allocation(STRATEGIES["sticky"], view).values())
    assert set(owners) == set(members)
