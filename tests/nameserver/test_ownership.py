"""One name, one owner: which registration may take a name that a live process holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.protocol.documents.nameserver import DataVersion, RegisterRequest
from rocketq_nameserver.route_table import RouteTable
from tests.support.registrations import heartbeat_of, registration

HOLDER = registration(at="x", process="p1", store="s1", lease_ms=100)
OTHER = registration(at="y", process="p2", store="s2", lease_ms=100)


@pytest.fixture
def table() -> RouteTable:
    """A table in which p1 holds broker-a, id 0, since the time 0."""
    made = RouteTable("ns")
    made.register(HOLDER, 0)
    return made


def owners(table: RouteTable) -> dict[tuple[str, int], str]:
    return {
        (live.identity.broker, live.identity.broker_id): live.identity.process
        for live in table.cluster(0).brokers
    }


def refusal(table: RouteTable, request: RegisterRequest, now_ms: int = 0) -> BrokerNameTaken:
    with pytest.raises(BrokerNameTaken) as raised:
        table.register(request, now_ms)
    return raised.value


def test_another_process_is_refused_while_the_lease_of_the_holder_lives(table: RouteTable) -> None:
    route, listed = table.route("orders"), table.topics()
    table.take_changes()
    error = refusal(table, replace(OTHER, topics=()), 70)
    assert error.facts == {
        "cluster": "default", "broker": "broker-a", "broker_id": 0,
        "address": "http://x:1", "age_ms": 70, "lease_ms": 100,
    }  # fmt: skip
    assert (table.route("orders"), table.topics()) == (route, listed)
    assert not table.take_changes().topics
    assert owners(table) == {("broker-a", 0): "p1"}
    assert table.heartbeat(heartbeat_of(HOLDER), 80)


def test_a_refused_process_does_not_end_another_broker_at_its_address(table: RouteTable) -> None:
    table.register(registration("broker-b", at="y", process="p3"), 0)
    refusal(table, OTHER)
    assert owners(table) == {("broker-a", 0): "p1", ("broker-b", 0): "p3"}


def test_the_name_is_free_when_the_lease_ended_even_before_a_scan(table: RouteTable) -> None:
    refusal(table, OTHER, 100)
    table.register(OTHER, 101)
    assert owners(table) == {("broker-a", 0): "p2"}
    assert table.expire(101) == ()


def test_the_name_is_free_when_its_holder_has_left(table: RouteTable) -> None:
    table.unregister([HOLDER.identity])
    table.register(OTHER, 1)
    assert owners(table) == {("broker-a", 0): "p2"}


def test_a_restart_on_the_same_store_takes_over_at_once_also_elsewhere(table: RouteTable) -> None:
    restarted = registration(at="z", process="p2", store="s1", lease_ms=100)
    table.register(restarted, 1)
    assert owners(table) == {("broker-a", 0): "p2"}
    route = table.route("orders")
    assert route is not None
    assert route.brokers[0].addresses == {0: "http://z:1"}
    assert not table.heartbeat(heartbeat_of(HOLDER), 2)


def test_a_restart_on_an_emptied_directory_waits_for_its_own_lease(table: RouteTable) -> None:
    emptied = registration(at="x", process="p2", store="s2", lease_ms=100)
    refusal(table, emptied, 100)
    table.register(emptied, 101)


def test_processes_that_name_no_store_have_none_in_common() -> None:
    table = RouteTable("ns")
    table.register(replace(HOLDER, store=""), 0)
    refusal(table, replace(OTHER, store=""))


def test_a_process_that_names_itself_not_is_known_by_its_address() -> None:
    table = RouteTable("ns")
    table.register(registration(at="x"), 0)
    table.register(registration(at="x"), 1)
    refusal(table, registration(at="y"))
    refusal(table, registration(at="x", process="p1"))


def test_each_broker_id_of_a_name_has_an_owner_of_its_own(table: RouteTable) -> None:
    table.register(registration(broker_id=1, at="y", process="p2", store="s2"), 0)
    assert owners(table) == {("broker-a", 0): "p1", ("broker-a", 1): "p2"}
    refusal(table, registration(broker_id=1, at="z", process="p3", store="s3"))


def test_an_election_outranks_the_holder(table: RouteTable) -> None:
    table.register(replace(OTHER, data_version=DataVersion(1, 0, 1)), 1)
    assert owners(table) == {("broker-a", 0): "p2"}


def test_a_process_that_leaves_late_does_not_remove_its_successor(table: RouteTable) -> None:
    table.register(registration(at="x", process="p2", store="s1"), 1)
    table.unregister([HOLDER.identity])
    assert owners(table) == {("broker-a", 0): "p2"}


@pytest.mark.parametrize(
    ("mine", "theirs", "taken"), [(5, 9, True), (5, 0, True), (9, 5, False), (0, 0, False)]
)
def test_the_process_that_held_the_name_first_keeps_it(mine: int, theirs: int, taken: bool) -> None:
    """A NameServer that restarted may have given the name to a newcomer: the one that had it comes back."""
    table = RouteTable("ns")
    table.register(replace(OTHER, held_since_us=theirs), 0)
    back = replace(HOLDER, held_since_us=mine)
    if taken:
        table.register(back, 1)
        assert owners(table) == {("broker-a", 0): "p1"}
        refusal(table, replace(OTHER, held_since_us=theirs))
    else:
        refusal(table, back, 1)


def test_a_process_whose_lease_ended_here_has_no_older_claim(table: RouteTable) -> None:
    """It was paused or cut off; whoever got the name after its lease keeps it."""
    table.register(replace(HOLDER, held_since_us=5), 0)
    table.register(replace(OTHER, held_since_us=0), 101)
    refusal(table, replace(HOLDER, held_since_us=5), 102)
    table.register(replace(OTHER, held_since_us=9), 103)
    refusal(table, replace(HOLDER, held_since_us=5), 104)
    table.expire(300)
    table.register(replace(HOLDER, held_since_us=5), 300)
    assert owners(table) == {("broker-a", 0): "p1"}


# --- several NameServers, several processes, one name -------------------------------------------


@dataclass
class Process:
    """A broker that behaves as `rocketq_broker.registration.registrar` does; stores are all different."""

    name: str
    reaches: set[int] = field(default_factory=set)
    known_to: set[int] = field(default_factory=set)
    since_us: int = 0
    alive: bool = True

    def request(self) -> RegisterRequest:
        made = registration(at=self.name, process=self.name, store=self.name, lease_ms=1_000_000)
        return replace(made, held_since_us=self.since_us)

    def claim(self, tables: list[RouteTable], now_us: int) -> None:
        for number in sorted(self.reaches):
            self._register(tables, number, now_us)

    def meet(self, tables: list[RouteTable], number: int, now_us: int) -> None:
        """One round of the worker of one NameServer."""
        known = number in self.known_to and tables[number].heartbeat(heartbeat_of(self.request()), 0)
        if self.alive and not known:
            self._register(tables, number, now_us)

    def _register(self, tables: list[RouteTable], number: int, now_us: int) -> None:
        if not self.alive:
            return
        try:
            tables[number].register(self.request(), 0)
        except BrokerNameTaken:
            self.alive = False
            for each in self.known_to:
                tables[each].unregister([self.request().identity])
        else:
            self.known_to.add(number)
            self.since_us = self.since_us or now_us


TABLES = (0, 1, 2)


@given(
    reaches=st.lists(st.sets(st.sampled_from(TABLES)), min_size=2, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(TABLES), st.booleans()), max_size=25),
)
def test_of_live_processes_with_one_name_the_first_that_held_it_remains(
    reaches: list[set[int]], steps: list[tuple[int, int, bool]]
) -> None:
    """Whichever NameServers each reaches at its start, and whichever restart and forget everything."""
    tables = [RouteTable(f"ns-{number}") for number in TABLES]
    processes = [Process(f"p{number}", reached) for number, reached in enumerate(reaches)]
    for now_us, process in enumerate(processes, 1):
        process.claim(tables, now_us)
    for now_us, (number, at, restarts) in enumerate(steps, 10):
        if restarts:
            tables[at] = RouteTable(f"ns-{at}")
        processes[number % len(processes)].meet(tables, at, now_us)
    for now_us in (100, 200, 300):
        for process in processes:
            for at in TABLES:
                process.meet(tables, at, now_us)
    [last] = [process for process in processes if process.alive]
    assert [owners(table) for table in tables] == [{("broker-a", 0): last.name}] * len(tables)
    assert last.since_us == min(process.since_us for process in processes if process.since_us)
