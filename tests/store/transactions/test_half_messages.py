"""Half messages in a store: who sees them, how they are decided, and what a start makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import InvalidRequest, QueueNotFound, SystemBusy, TopicNotFound
from rocketq.errors.transaction_errors import (
    NotTransactionOwner,
    TransactionDecidedOtherwise,
    TransactionNotFound,
)
from rocketq.model import Message, TransactionState
from rocketq.protocol.documents.transactions import HalfName
from rocketq_broker.store.config import RetentionPolicy, TransactionPolicy
from rocketq_broker.store.machines.transaction_table import DECIDED_MAX
from rocketq_broker.store.state.state import Picture, State, decode_picture, encode
from rocketq_broker.store.transactions import decisions
from tests.support.half_messages import GROUP, commit, hand_out, roll_back, send_half
from tests.support.store_driver import Driver, batch, burst, config, opened


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with opened(config(tmp_path)) as made:
        made.create("t", 2)
        yield made


def test_a_half_message_is_seen_when_it_is_committed_and_not_before(driver: Driver) -> None:
    send_half(driver, "tx-1", 1, [b"order"])
    driver.send("t", 1, [b"other"])
    assert driver.bodies("t", 1) == [b"other"]
    assert driver.store.transactions.table.half_messages == 1
    commit(driver, "tx-1")
    assert driver.bodies("t", 1) == [b"other", b"order"]
    assert driver.store.transactions.table.half_messages == 0


def test_a_message_that_is_rolled_back_is_never_seen(driver: Driver) -> None:
    send_half(driver, "tx-1", 0, [b"order"])
    roll_back(driver, "tx-1")
    assert driver.bodies("t", 0) == []
    assert driver.store.transactions.table.floor is None


def test_all_messages_of_a_transaction_share_its_outcome(driver: Driver) -> None:
    driver.create("u", 1)
    send_half(driver, "tx-1", 0, [b"a", b"b"])
    send_half(driver, "tx-1", 0, [b"c"], part=1, topic="u")
    send_half(driver, "tx-1", 1, [b"d"], part=2)
    outcome = commit(driver, "tx-1")
    assert (driver.bodies("t", 0), driver.bodies("t", 1), driver.bodies("u", 0)) == (
        [b"a", b"b"],
        [b"d"],
        [b"c"],
    )
    assert outcome.messages == {"t": 3, "u": 1}


def test_a_committed_message_keeps_key_tag_and_properties(driver: Driver) -> None:
    message = Message(b"x", b"k", "paid", {"region": "eu"}, 17)
    send_half(driver, "tx-1", 0, [message])
    commit(driver, "tx-1")
    (piece,) = driver.slices("t", 0)
    (row,) = piece.batch.to_pylist()
    assert (row["key"], row["tag"], dict(row["properties"])) == (b"k", "paid", {"region": "eu"})


def test_a_part_that_comes_again_is_held_once(driver: Driver) -> None:
    send_half(driver, "tx-1", 0, [b"a"])
    send_half(driver, "tx-1", 0, [b"a"])
    send_half(driver, "tx-1", 0, [b"b"], part=1)
    send_half(driver, "tx-1", 0, [b"b"], part=1)
    commit(driver, "tx-1")
    assert driver.bodies("t", 0) == [b"a", b"b"]


def test_a_part_that_does_not_follow_is_refused(driver: Driver) -> None:
    send_half(driver, "tx-1", 0, [b"a"])
    with pytest.raises(InvalidRequest, match="does not follow"):
        send_half(driver, "tx-1", 0, [b"c"], part=2)
    with pytest.raises(TransactionNotFound):
        send_half(driver, "tx-2", 0, [b"c"], part=1)


def test_a_decision_that_comes_again_changes_nothing(driver: Driver) -> None:
    send_half(driver, "tx-1", 0, [b"a"])
    assert commit(driver, "tx-1").messages == {"t": 1}
    assert commit(driver, "tx-1").messages == {}
    send_half(driver, "tx-2", 0, [b"b"])
    roll_back(driver, "tx-2")
    roll_back(driver, "tx-2")
    assert driver.bodies("t", 0) == [b"a"]


def test_a_decision_that_contradicts_another_is_refused(driver: Driver) -> None:
    for name, first, second in (("tx-1", commit, roll_back), ("tx-2", roll_back, commit)):
        send_half(driver, name, 0, [name.encode()])
        first(driver, name)
        with pytest.raises(TransactionDecidedOtherwise) as refused:
            second(driver, name)
        assert refused.value.facts["outcome"] == ("COMMIT" if first is commit else "ROLLBACK")
    assert driver.bodies("t", 0) == [b"tx-1"]


def test_a_decided_transaction_takes_no_more_messages(driver: Driver) -> None:
    send_half(driver, "tx-1", 0, [b"a"])
    commit(driver, "tx-1")
    with pytest.raises(TransactionDecidedOtherwise):
        send_half(driver, "tx-1", 0, [b"b"], part=1)
    with pytest.raises(TransactionDecidedOtherwise):
        send_half(driver, "tx-1", 0, [b"a"])


def test_a_transaction_of_another_group_is_refused(driver: Driver) -> None:
    send_half(driver, "tx-1", 0, [b"a"])
    with pytest.raises(NotTransactionOwner) as refused:
        commit(driver, "tx-1", group="thief")
    assert refused.value.facts["owner"] == GROUP
    with pytest.raises(NotTransactionOwner):
        send_half(driver, "tx-1", 0, [b"b"], part=1, group="thief")
    assert driver.bodies("t", 0) == []


def test_a_transaction_that_nobody_began_is_not_found(driver: Driver) -> None:
    with pytest.raises(TransactionNotFound):
        commit(driver, "never")


def test_a_half_message_for_a_wrong_place_begins_nothing(driver: Driver) -> None:
    with pytest.raises(QueueNotFound):
        send_half(driver, "tx-1", 9, [b"a"])
    with pytest.raises(TopicNotFound):
        send_half(driver, "tx-1", 0, [b"a"], topic="nowhere")
    assert len(driver.store.transactions.table.open) == 0


def test_a_group_has_a_limit_of_open_transactions(tmp_path: Path) -> None:
    with opened(config(tmp_path, transactions=TransactionPolicy(group_max=2))) as driver:
        driver.create("t", 1)
        send_half(driver, "tx-1", 0, [b"1"])
        send_half(driver, "tx-2", 0, [b"2"])
        with pytest.raises(SystemBusy, match="limit of 2 open transactions"):
            send_half(driver, "tx-3", 0, [b"3"])
        send_half(driver, "tx-3", 0, [b"3"], group="another")
        send_half(driver, "tx-1", 0, [b"more"], part=1)
        commit(driver, "tx-1")
        send_half(driver, "tx-4", 0, [b"4"])


def test_messages_for_a_deleted_topic_are_not_committed(driver: Driver) -> None:
    driver.create("u", 1)
    send_half(driver, "tx-1", 0, [b"a"])
    send_half(driver, "tx-1", 0, [b"b"], part=1, topic="u")
    driver.delete("t")
    driver.create("t", 2)
    assert commit(driver, "tx-1").messages == {"u": 1}
    assert (driver.bodies("t", 0), driver.bodies("u", 0)) == ([], [b"b"])


def test_commits_in_one_group_keep_the_order_of_the_decisions(driver: Driver) -> None:
    names = [f"tx-{number}" for number in range(20)]
    for name in names:
        send_half(driver, name, 0, [name.encode()])
    burst(
        driver.store,
        [
            partial(driver.store.transactions.decide, name, GROUP, TransactionState.COMMIT)
            for name in reversed(names)
        ],
    )
    assert driver.bodies("t", 0) == [name.encode() for name in reversed(names)]


def test_a_torn_first_part_leaves_no_transaction(driver: Driver, tmp_path: Path) -> None:
    send_half(driver, "tx-1", 0, [b"a"])
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy", "lock"))
    (segment,) = (copy / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.truncate(driver.store.statistics().log_end - 8)
    with opened(config(copy)) as torn:
        assert torn.store.report.torn_bytes > 0
        assert len(torn.store.transactions.table.open) == 0


@pytest.mark.parametrize("end", ["close", "snapshot, then close"])
def test_a_start_knows_what_is_open_and_what_was_decided(tmp_path: Path, end: str) -> None:
    clock = ManualClock()
    with opened(config(tmp_path), clock=clock) as driver:
        driver.create("t", 1)
        for name in ("open", "checked", "done", "undone"):
            send_half(driver, name, 0, [name.encode()])
        commit(driver, "done")
        roll_back(driver, "undone")
        now_ms = clock.now_us() // 1000
        assert hand_out(driver, now_ms + 6_000, count=1) == ["open"]
        if end != "close":
            driver.store.take_snapshot()
    with opened(config(tmp_path), clock=clock) as driver:
        table = driver.store.transactions.table
        assert {each.id: each.checks for each in table.open.values()} == {"open": 1, "checked": 0}
        assert hand_out(driver, now_ms + 6_000) == ["checked"]
        with pytest.raises(TransactionDecidedOtherwise):
            roll_back(driver, "done")
        with pytest.raises(TransactionDecidedOtherwise):
            commit(driver, "undone")
        commit(driver, "open")
        assert driver.bodies("t", 0) == [b"done", b"open"]


def test_the_picture_of_a_table_makes_the_same_table(driver: Driver) -> None:
    for number in range(6):
        send_half(driver, f"tx-{number}", 0, [b"x"])
    commit(driver, "tx-1")
    roll_back(driver, "tx-4")
    now_ms = driver.store.transactions.find("tx-0").begun_at_ms
    hand_out(driver, now_ms + 60_000, count=2)
    table = driver.store.transactions.table
    picture = Picture.of(State(transactions=table), {}, 0)
    assert decode_picture(encode(picture)).state().transactions == table


def test_only_the_last_outcomes_are_remembered(driver: Driver) -> None:
    table = driver.store.transactions.table
    for number in range(DECIDED_MAX + 1):
        name = HalfName(f"tx-{number}", GROUP, 0)
        begun = decisions.begin(table, name, TransactionPolicy(), "broker-a", 1)
        table = table.apply(begun, driver.store.transactions.topics)
        made = decisions.decide(table, name.transaction, GROUP, TransactionState.COMMIT, "broker-a")
        table = table.apply(made, driver.store.transactions.topics)
    assert len(table.decided) == DECIDED_MAX
    assert table.decided.get("tx-0") is None
    assert table.decided.get("tx-1") is True


def test_half_messages_and_sends_share_a_commit(driver: Driver) -> None:
    half = HalfName("tx-1", GROUP, 0)
    burst(
        driver.store,
        [
            partial(driver.store.append, "t", [batch(0, [b"a"])]),
            lambda done: driver.store.append("t", [batch(0, [b"half"])], done, stage=half),
            partial(driver.store.append, "t", [batch(0, [b"b"])]),
        ],
    )
    assert driver.bodies("t", 0) == [b"a", b"b"]
    commit(driver, "tx-1")
    assert driver.bodies("t", 0) == [b"a", b"b", b"half"]


def test_retention_keeps_the_segment_of_an_open_transaction(tmp_path: Path) -> None:
    retention = RetentionPolicy(retention_bytes=1)
    with opened(config(tmp_path, segment_bytes=4096, retention=retention)) as driver:
        driver.create("t", 1)
        send_half(driver, "tx-1", 0, [b"half"])
        for _ in range(8):
            driver.send("t", 0, [bytes(2000)])
        assert driver.store.retain().remove == 0
        commit(driver, "tx-1")
        assert driver.bodies("t", 0)[-1] == b"half"
        assert driver.store.retain().remove > 0


def test_an_unanswered_part_and_its_repeat_in_one_commit_are_held_once(driver: Driver) -> None:
    half = HalfName("tx-1", GROUP, 0)
    send = partial(driver.store.append, "t", [batch(0, [b"half"])], stage=half)
    burst(driver.store, [lambda done: send(done=done), lambda done: send(done=done)])
    commit(driver, "tx-1")
    assert driver.bodies("t", 0) == [b"half"]
