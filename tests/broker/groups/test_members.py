"""Members join, are told of each other, and are missed when they go."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from rocketq.errors import (
    ClaimLost,
    Conflict,
    GroupDisabled,
    GroupNotFound,
    InvalidFilter,
    InvalidName,
    InvalidRequest,
    MemberUnknown,
    ReservedName,
)
from rocketq.http_server.runner import ServerThread
from rocketq.model import MessageModel, StartFrom
from rocketq.protocol.documents.groups import (
    DifferenceKind,
    Heartbeat,
    ProducerHeartbeat,
    SetGroupRequest,
    StartRule,
    Subscription,
)
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from tests.broker.conftest import StartBroker
from tests.broker.groups.conftest import NewMember
from tests.broker.groups.scripted_member import GroupMember, close_all, owners
from tests.support.conditions import WAIT_MS
from tests.support.http_client import Http, numbered, stream

#: A member in a process of its own: it joins, claims, says so, and watches until it is killed.
MEMBER = """
import sys
from tests.broker.groups.scripted_member import GroupMember
member = GroupMember(sys.argv[1], int(sys.argv[2]))
member.join()
version = member.watch_now().version
member.claim(0, 1)
print("joined", flush=True)
while True:
    version = member.watch_now(version, 20_000).version
"""


def ids(found: Any) -> list[str]:
    return [each.client_id for each in found.members]


def wait_until_watched(broker: Http, count: int) -> None:
    """Ask the broker until it says that so many watches are held; the test's timeout bounds it."""
    while f"rocketq_held_watches {count}.0" not in broker.get("/metrics").body.decode():
        pass


def test_a_member_is_told_when_another_one_joins_and_leaves(new_member: NewMember) -> None:
    first, second = new_member(1), new_member(2)
    version = first.join().members_version
    watch = first.watch(version)
    second.join()
    found = watch.result()
    assert ids(found) == [first.client_id, second.client_id]
    assert [(each.topic, each.client_ids) for each in found.topics] == [
        ("orders", (first.client_id, second.client_id))
    ]
    watch = first.watch(found.version)
    second.leave()
    assert ids(watch.result()) == [first.client_id]


def test_a_repeated_heartbeat_tells_nobody_and_another_subscription_does(new_member: NewMember) -> None:
    first, second = new_member(1), new_member(2)
    first.join()
    known = second.join()
    assert (known.is_new, second.join().is_new) == (True, False)
    assert second.join().members_version == known.members_version
    watch = second.watch(known.members_version)
    first.join("orders", "refunds")
    found = watch.result()
    assert [each.topic for each in found.topics] == ["orders", "refunds"]


def test_a_watch_is_answered_as_things_stand_when_its_time_is_over(new_member: NewMember) -> None:
    member = new_member(1)
    version = member.join().members_version
    same = member.watch_now(version, wait_ms=20)
    assert (same.version, same.is_changed, same.members, same.topics) == (version, False, (), ())
    other = member.watch_now("another")
    assert (other.version, other.is_changed, len(other.members)) == (version, True, 1)


def test_a_killed_member_is_missed_and_its_queues_are_released(broker: Http, new_member: NewMember) -> None:
    member = new_member(1)
    version = member.join().members_version
    command = [sys.executable, "-c", MEMBER, broker.address, "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        found = member.watch_now(version, wait_ms=WAIT_MS)
        assert ids(found) == [member.client_id, "10.0.0.2@7#1"]
        assert member.claim(0).refused[0].owner == "10.0.0.2@7#1"
        process.send_signal(signal.SIGKILL)
        # Far below the session's timeout of 120 s, which is longer than this watch.
        found = member.watch_now(found.version, wait_ms=WAIT_MS)
        assert ids(found) == [member.client_id]
        assert member.epochs(0, 1).keys() == {0, 1}
    finally:
        process.kill()
        process.communicate()


def test_a_watch_that_breaks_beside_another_one_ends_no_session(broker: Http, new_member: NewMember) -> None:
    """As when a member makes its connection again before the broker sees that the old one is broken."""
    member, other = new_member(1), new_member(2)
    version = member.join().members_version
    query = urlencode({"client_id": member.client_id, "known": version, "wait_ms": 60_000})
    with socket.create_connection((broker.host, broker.port)) as connection:
        connection.sendall(
            f"GET /v1/groups/billing/members?{query} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        )
        wait_until_watched(broker, 1)
        watch = member.watch(version)
        wait_until_watched(broker, 2)
    wait_until_watched(broker, 1)
    other.join()
    assert ids(watch.result()) == [member.client_id, other.client_id]


def test_a_silent_member_is_dropped_after_its_session_timeout(new_member: NewMember) -> None:
    first, silent = new_member(1), new_member(2)
    first.join()
    silent.join()
    silent.claim(0, 1, 2, 3)
    version = silent.join(session_timeout_ms=1_000).members_version
    found = first.watch_now(version, wait_ms=WAIT_MS)
    assert ids(found) == [first.client_id]
    with pytest.raises(MemberUnknown):
        silent.claim(0)
    with pytest.raises(MemberUnknown):
        silent.watch_now()
    assert first.epochs(0, 1, 2, 3).keys() == {0, 1, 2, 3}


def test_a_watch_of_a_member_whose_session_ends_is_answered(new_member: NewMember) -> None:
    member = new_member(1)
    version = member.join().members_version
    watch = member.watch(version)
    member.leave()
    with pytest.raises(MemberUnknown):
        watch.result()


def test_two_members_cannot_act_under_one_client_id(broker: Http, new_member: NewMember) -> None:
    member = new_member(1)
    version = member.join().members_version
    epoch = member.epochs(0)[0]
    watch = member.watch(version)
    other = Heartbeat(99, (Subscription("orders"),))
    wait_until_watched(broker, 1)
    with pytest.raises(Conflict, match="another live member"):
        member.api.heartbeat("billing", member.client_id, other)
    assert member.commit((0, epoch, 0)) == {0: 0}
    member.api.delete_group("billing", force=True)
    with pytest.raises(MemberUnknown):
        watch.result()


def test_a_new_process_under_an_old_client_id_owns_nothing_of_it(new_member: NewMember) -> None:
    member = new_member(1)
    member.join()
    epoch = member.epochs(0)[0]
    answer = member.api.heartbeat("billing", member.client_id, Heartbeat(99, (Subscription("orders"),)))
    assert (answer.is_new, answer.claims) == (True, ())
    with pytest.raises(ClaimLost):
        member.commit((0, epoch, 0))


def test_a_goodbye_may_be_repeated(new_member: NewMember) -> None:
    member = new_member(1)
    member.leave()
    member.join()
    member.leave()
    member.leave()
    assert member.api.group("billing").members == ()


def test_many_members_that_come_at_once_are_all_told(new_member: NewMember) -> None:
    first = new_member(1)
    version = first.join().members_version
    others = [new_member(number) for number in range(2, 22)]
    threads = [threading.Thread(target=each.join) for each in others]
    for thread in threads:
        thread.start()
    found = first.watch_now(version, wait_ms=WAIT_MS)
    while len(found.members) < 21:
        found = first.watch_now(found.version, wait_ms=WAIT_MS)
    for thread in threads:
        thread.join()


# --- what members say ---------------------------------------------------------------------


def test_a_different_filter_is_named_and_gets_no_queue(new_member: NewMember) -> None:
    old, new = new_member(1), new_member(2)
    old.join(Subscription("orders", tag="paid || sent"))
    answer = new.join(Subscription("orders", sql="amount > 40"))
    [difference] = answer.differences
    assert (difference.client_id, difference.kind) == (new.client_id, DifferenceKind.FILTER)
    assert (difference.value, difference.counts) == ("amount > 40", "paid || sent")
    assert difference.theirs == old.client_id
    assert old.api.group("billing").differences == (difference,)
    same_meaning = old.join(Subscription("orders", tag="sent||paid")).differences
    assert [each.client_id for each in same_meaning] == [new.client_id]
    assert [each.reason for each in new.claim(0, 1).refused] == ["not_eligible"] * 2
    assert old.epochs(0, 1).keys() == {0, 1}
    old.leave()
    assert new.epochs(0, 1).keys() == {0, 1}


def test_another_message_model_is_named_and_gets_no_queue(new_member: NewMember) -> None:
    first, second = new_member(1), new_member(2)
    first.join()
    answer = second.join(model=MessageModel.BROADCASTING, start=StartRule(StartFrom.LAST))
    assert answer.model is MessageModel.CLUSTERING
    assert answer.start == StartRule(StartFrom.FIRST)
    assert [each.kind for each in answer.differences] == [DifferenceKind.MODEL, DifferenceKind.START]
    assert second.claim(0).granted == ()


def test_a_setting_of_the_group_counts_before_its_oldest_member(new_member: NewMember) -> None:
    member = new_member(1)
    start = StartRule(StartFrom.TIME, 1_700_000_000_000_000)
    member.api.set_group("billing", SetGroupRequest(start=start, retries_max=3, ordered=True))
    answer = member.join()
    assert (answer.start, answer.retries_max, answer.ordered) == (start, 3, True)
    assert {each.kind for each in answer.differences} == {DifferenceKind.START, DifferenceKind.ORDERED}
    assert {each.theirs for each in answer.differences} == {""}
    assert member.claim(0).granted == ()
    version = answer.members_version
    watch = member.watch(version)
    member.api.set_group("billing", SetGroupRequest(unset=("ordered", "start")))
    assert watch.result().version != version
    assert member.epochs(0).keys() == {0}


@pytest.mark.parametrize(
    ("beat", "error"),
    [
        (Heartbeat(1, ()), InvalidRequest),
        (Heartbeat(1, (Subscription("orders"), Subscription("orders"))), InvalidRequest),
        (Heartbeat(1, (Subscription("orders", tag="a", sql="b = 1"),)), InvalidRequest),
        (Heartbeat(1, (Subscription("orders", sql="amount >"),)), InvalidFilter),
        (Heartbeat(1, (Subscription("orders", tag="a ||"),)), InvalidFilter),
        (Heartbeat(1, (Subscription("or ders"),)), InvalidName),
        (Heartbeat(1, (Subscription("orders"),), session_timeout_ms=10), InvalidRequest),
        (Heartbeat(1, (Subscription("orders"),), session_timeout_ms=10**9), InvalidRequest),
        (Heartbeat(1, (Subscription("orders"),), start=StartRule(StartFrom.TIME)), InvalidRequest),
        (Heartbeat(1, (Subscription("orders"),), start=StartRule(StartFrom.LAST, 5)), InvalidRequest),
    ],
)
def test_a_heartbeat_that_cannot_be_joins_nothing(
    new_member: NewMember, beat: Heartbeat, error: type[Exception]
) -> None:
    member = new_member(1)
    with pytest.raises(error):
        member.api.heartbeat("billing", member.client_id, beat)
    with pytest.raises(GroupNotFound):
        member.api.group("billing")


@pytest.mark.parametrize(
    ("group", "client_id", "error"),
    [
        ("CID_RMQ_SYS_TRANS", "c", ReservedName),
        ("bil ling", "c", InvalidName),
        ("billing", "a b", InvalidName),
        ("billing", "x" * 256, InvalidName),
        ("billing", "größe", InvalidName),
    ],
)
def test_names_of_groups_and_members_are_checked(
    new_member: NewMember, group: str, client_id: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        new_member(1).api.heartbeat(group, client_id, Heartbeat(1, (Subscription("orders"),)))


# --- the group's own life -----------------------------------------------------------------


def test_first_use_creates_no_group_where_that_is_off(start_broker: StartBroker) -> None:
    broker = start_broker(auto_create_groups=False)
    broker.create("orders", read_queues=1, write_queues=1)
    member = GroupMember(broker.address, 1)
    try:
        with pytest.raises(GroupNotFound):
            member.join()
        place = {"topic": "orders", "queue": 0, "offset": 0}
        assert broker.put("/v1/groups/billing/offsets", {"offsets": [place]}).code == "GROUP_NOT_FOUND"
        member.api.set_group("billing", SetGroupRequest())
        assert member.join().is_new
    finally:
        close_all([member])


def test_a_disabled_group_ends_its_members_and_gets_nothing(broker: Http, new_member: NewMember) -> None:
    member = new_member(1)
    version = member.join().members_version
    member.claim(0)
    watch = member.watch(version)
    member.api.set_group("billing", SetGroupRequest(enabled=False))
    with pytest.raises(GroupDisabled):
        watch.result()
    with pytest.raises(GroupDisabled):
        member.join()
    with pytest.raises(GroupDisabled):
        member.claim(0)
    with pytest.raises(GroupDisabled):
        member.api.pull("orders", 0, 0, group="billing")
    assert owners(member.api) == {}
    member.api.set_group("billing", SetGroupRequest(enabled=True))
    assert member.join().is_new


@contextlib.contextmanager
def running(data_dir: Path) -> Iterator[Http]:
    """A broker of this directory, and a stop in good order."""
    app = create_app(BrokerConfig(name="broker-0", data_dir=data_dir, port=0))
    server = ServerThread(app)
    app.bound(server.address)
    with server:
        yield Http(server.address)


def test_a_restart_of_the_broker_moves_no_queue(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        broker.create("orders", read_queues=4, write_queues=4)
        broker.send("orders", stream(numbered(5)), "?queue=0")
        member = GroupMember(broker.address, 1)
        member.join()
        epoch = member.epochs(0, 1)[0]
        member.close()
    with running(tmp_path) as broker:
        member, idle = GroupMember(broker.address, 1), GroupMember(broker.address, 2)
        assert idle.join().is_new
        [unheard, _] = idle.watch_now().members
        assert (unheard.client_id, unheard.heard) == (member.client_id, False)
        assert idle.claim(0).refused[0].owner == member.client_id
        assert member.commit((0, epoch, 3)) == {0: 3}
        with pytest.raises(MemberUnknown):
            member.watch_now()
        answer = member.join()
        assert {(each.queue, each.epoch) for each in answer.claims} == {(0, epoch), (1, epoch)}
        assert idle.watch_now().members[0].heard
        close_all([member, idle])


def test_producers_are_listed_until_they_leave(new_member: NewMember) -> None:
    api = new_member(1).api
    assert api.producers("web").members == ()
    api.producer_heartbeat("web", "p-1", ProducerHeartbeat(5, language="python", version="0.1"))
    api.producer_heartbeat("web", "p-2", ProducerHeartbeat(6))
    found = api.producers("web").members
    assert [(each.client_id, each.started_at_us, each.language) for each in found] == [
        ("p-1", 5, "python"),
        ("p-2", 6, ""),
    ]
    assert found[0].address.startswith("127.0.0.1:")
    api.producer_leaves("web", "p-1")
    api.producer_leaves("web", "p-1")
    assert [each.client_id for each in api.producers("web").members] == ["p-2"]


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/v1/groups/billing/members?wait_m=1", 400, "wait_m"),
        ("GET", "/v1/groups/billing/members?wait_ms=0&wait_ms=1", 400, "given twice"),
        ("GET", "/v1/groups/billing/members?wait_ms=soon", 400, "is not a whole number"),
        ("PUT", "/v1/groups/billing/members/a@1?wait_ms=1", 400, "wait_ms"),
        ("DELETE", "/v1/groups/billing/members/a@1?force=true", 400, "force"),
        ("POST", "/v1/groups/billing/members", 405, "POST"),
        ("PUT", "/v1/groups/billing/members/a%2Fb", 400, "a/b"),
        ("PUT", "/v1/groups/billing/members/", 400, "client"),
        ("PUT", "/v1/groups/bil%2Fling/members/a@1", 400, "bil/ling"),
    ],
)
def test_a_call_about_members_that_is_not_in_form_is_refused(
    broker: Http, method: str, path: str, status: int, says: str
) -> None:
    body = b'{"started_at_us": 1, "subscriptions": [{"topic": "orders"}]}' if method == "PUT" else None
    answer = broker.call(method, path, body, {"content-type": "application/json"} if body else {})
    assert (answer.status, says in answer.body.decode()) == (status, True), answer.body
    assert broker.get("/v1/groups").json["groups"] == []
