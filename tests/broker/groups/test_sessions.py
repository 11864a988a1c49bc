"""Who is a member and until when, in any order of calls and times."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rocketq.errors import SystemBusy
from rocketq_broker.groups.sessions import (
    LATE_MS,
    WATCH_BROKEN_GRACE_MS,
    WATCH_RETURN_GRACE_MS,
    Sessions,
)

GROUPS = st.sampled_from(["g", "h"])
MEMBERS = st.sampled_from(["a", "b", "c"])
TIMEOUTS = st.sampled_from([1_000, 20_000, 120_000])


@dataclass
class Expected:
    """What a session must be: each of the two is a time after which it is over."""

    beat: str | None
    silent_at: int
    unwatched_at: int | None = None
    watches: int = 0
    timeout: int = 0


class SessionsAndModel(RuleBasedStateMachine):
    """`self.expected` is what must be; time goes on between the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: Sessions[str] = Sessions(100)
        self.now = 5
        self.expected: dict[tuple[str, str], Expected] = {}

    @rule(group=GROUPS, member=MEMBERS, said=st.sampled_from(["x", "y"]), timeout=TIMEOUTS)
    def heartbeat(self, group: str, member: str, said: str, timeout: int) -> None:
        joined = self.sessions.beat(group, member, said, "address", timeout, self.now)
        old = self.expected.get((group, member))
        assert joined.is_new == (old is None or old.beat is None)
        assert joined.is_change == (old is None or old.beat != said)
        made = old or Expected(said, 0)
        made.beat, made.timeout, made.silent_at = said, timeout, self.now + timeout
        if made.unwatched_at is not None:
            made.unwatched_at = self.now + WATCH_RETURN_GRACE_MS
        self.expected[group, member] = made

    @rule(group=GROUPS, member=MEMBERS, timeout=TIMEOUTS)
    def recover(self, group: str, member: str, timeout: int) -> None:
        if (group, member) not in self.expected:
            self.sessions.recover(group, member, ("orders",), timeout, self.now)
            self.expected[group, member] = Expected(None, self.now + timeout, timeout=timeout)

    @rule(group=GROUPS, member=MEMBERS)
    def watch(self, group: str, member: str) -> None:
        found = self.expected.get((group, member))
        is_member = found is not None and found.beat is not None
        assert self.sessions.watch_begins(group, member, self.now) == is_member
        if found is not None and is_member:
            found.watches += 1
            found.unwatched_at, found.silent_at = None, self.now + found.timeout

    @rule(group=GROUPS, member=MEMBERS, is_broken=st.booleans())
    def watch_ends(self, group: str, member: str, is_broken: bool) -> None:
        self.sessions.watch_ends(group, member, is_broken, self.now)
        found = self.expected.get((group, member))
        if found is not None and found.watches:
            found.watches -= 1
            if not found.watches:
                grace = WATCH_BROKEN_GRACE_MS if is_broken else WATCH_RETURN_GRACE_MS
                found.unwatched_at = self.now + grace

    @rule(group=GROUPS, member=MEMBERS)
    def goodbye(self, group: str, member: str) -> None:
        ended = self.sessions.end(group, member)
        assert (ended is not None) == (self.expected.pop((group, member), None) is not None)

    @rule(group=GROUPS, member=MEMBERS)
    def an_end_that_failed_is_due_again(self, group: str, member: str) -> None:
        ended = self.sessions.end(group, member)
        if ended is not None:
            self.sessions.end_again(group, ended, self.now)
            assert (group, member) in self.sessions.due(self.now)
            self.sessions.end(group, member)
            del self.expected[group, member]

    @rule(ms=st.sampled_from([1, 999, 2_999, 3_000, 15_000, 120_000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        over = {
            place
            for place, each in self.expected.items()
            if each.silent_at <= self.now or (each.unwatched_at is not None and each.unwatched_at <= self.now)
        }
        assert self.sessions.due(self.now, self.now - LATE_MS) == [], "the broker itself was stopped"
        assert set(self.sessions.due(self.now, self.now - LATE_MS + 1)) == over
        for place in over:
            self.sessions.end(*place)
            del self.expected[place]

    @invariant()
    def the_members_are_those_whose_time_is_not_over(self) -> None:
        found = {(group, each.client_id) for group in self.sessions for each in self.sessions.of(group)}
        assert found == set(self.expected)
        assert len(self.sessions) == len(self.expected)
        for group in ("g", "h"):
            assert self.sessions.count(group) == sum(place[0] == group for place in self.expected)


def test_the_sessions_of_a_broker_are_bounded() -> None:
    sessions: Sessions[str] = Sessions(2)
    for member in ("a", "b"):
        sessions.beat("g", member, "x", "address", 1_000, 0)
    with pytest.raises(SystemBusy):
        sessions.beat("h", "a", "x", "address", 1_000, 0)
    sessions.beat("g", "a", "x", "address", 1_000, 0)
    sessions.end("g", "b")
    assert sessions.beat("h", "a", "x", "address", 1_000, 0).is_new


TestSessionsAndModel = SessionsAndModel.TestCase
