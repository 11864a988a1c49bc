"""What a member decides in a round: from what the brokers say to what it releases and claims."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from rocketq.consuming.allocation.strategies import STRATEGIES, sticky
from rocketq.consuming.members.rebalance import (
    Moves,
    Shares,
    again_in_ms,
    members_of,
    moves_to,
    progress_of,
    shares_of,
)
from rocketq.model import MessageQueue
from rocketq.protocol.documents.groups import ClaimedOffset, GroupMembers, TopicMembers

QUEUES = [MessageQueue("t", broker, n) for broker in ("a", "b") for n in range(4)]


def named(broker: str, topics: Mapping[str, list[str]]) -> GroupMembers:
    """What one broker says of the members."""
    listed = tuple(TopicMembers(topic, tuple(ids)) for topic, ids in topics.items())
    return GroupMembers(broker, "g", "1", (), listed)


def test_all_members_look_at_the_same_broker_while_it_answers() -> None:
    known = {"a": named("a", {"t": ["m1"]}), "b": named("b", {"t": ["m1", "m2"]})}
    assert members_of("t", ["b", "a"], known) == ["m1"]
    assert members_of("t", ["b", "a"], {"b": known["b"]}) == ["m1", "m2"]
    assert members_of("t", ["c"], known) is None
    assert members_of("other", ["a"], known) == []


def test_a_topic_whose_members_nobody_says_stays_as_it_is() -> None:
    shares = shares_of("m1", {"t": QUEUES}, {}, {}, sticky)
    assert shares == Shares(frozenset(), frozenset({"t"}))
    assert moves_to(shares, QUEUES[:2], []) == Moves((), ())


def test_a_member_whose_filter_differs_gives_everything_back() -> None:
    shares = shares_of("m1", {"t": QUEUES}, {"a": named("a", {"t": ["m2"]})}, {}, sticky)
    assert moves_to(shares, QUEUES[:2], []) == Moves(tuple(QUEUES[:2]), ())


def test_a_queue_that_is_leaving_is_neither_left_again_nor_claimed() -> None:
    shares = Shares(frozenset(QUEUES[:2]), frozenset())
    assert moves_to(shares, QUEUES[1:4], QUEUES[2:3]) == Moves((QUEUES[3],), (QUEUES[0],))


def test_a_refused_claim_is_made_again_soon_and_then_more_slowly() -> None:
    waits = [again_in_ms(refusals) for refusals in range(1, 20)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (20, 1_000)


def test_what_a_broker_has_already_is_not_committed_again() -> None:
    assert progress_of(QUEUES[0], 3, 17, 17) is None
    assert progress_of(QUEUES[0], 3, 17, None) == ClaimedOffset("t", 0, 3, 17)


@given(
    changes=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    seed=st.randoms(use_true_random=False),
)
def test_members_that_come_and_go_end_with_all_queues_shared_out(
    changes: list[tuple[int, bool]], strategy: str, seed: random.Random
) -> None:
    """Rounds of single members in any order, with a broker that gives a queue to one owner at a time."""
    owners: dict[MessageQueue, str] = {}
    members: set[str] = set()
    for number, joins in changes:
        (members.add if joins else members.discard)(f"m{number}")
        owners = {queue: owner for queue, owner in owners.items() if owner in members}
        for _ in range(4):
            for member in sorted(members, key=lambda _: seed.random()):
                known = {"a": named("a", {"t": sorted(members)})}
                shares = shares_of(member, {"t": QUEUES}, known, owners, STRATEGIES[strategy])
                moves = moves_to(shares, [q for q, owner in owners.items() if owner == member], [])
                for queue in moves.leave:
                    del owners[queue]
                for queue in moves.claim:
                    owners.setdefault(queue, member)
        assert set(owners) == (set(QUEUES) if members else set())
        if members and strategy != "consistent_hash":
            counts = Counter(owners.values())
            assert max(counts.values()) - min(counts[m] for m in members) <= 1
