"""Sends that come again: what a store answers, what it remembers, and what it forgets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import StoreFull, TopicNotFound
from rocketq.errors.sending_errors import SendNumberReused, SendOutdated
from rocketq.model import NO_OFFSET, Appended, FlushMode, Message
from rocketq.protocol.frame import FrameKind, scan
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import Horizon
from rocketq_broker.data_plane.sends.send_delayed import held_batches
from rocketq_broker.store.commit.small_batches import QueueMessage
from rocketq_broker.store.machines.slot_table import (
    KEPT_MS,
    PLACES_MAX,
    NumberedSend,
    SendsNumbered,
    SlotTable,
)
from rocketq_broker.store.machines.timer_table import TimerPlace
from rocketq_broker.store.machines.topic_table import TopicTable
from rocketq_broker.store.state.state import Picture, State, decode_picture, encode
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.numbered_sends import numbered, send_numbered
from tests.support.store_driver import Driver, batch, burst, config, opened
from tests.support.workload import end_life

SLOT, OTHER = 5840092817465112034, 7
PLACE = Appended(0, 0, 1)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with opened(config(tmp_path)) as made:
        made.create("t", 2)
        yield made


def test_a_send_that_comes_again_is_stored_once_and_answered_the_same(driver: Driver) -> None:
    first = send_numbered(driver, (SLOT, 1), [batch(0, [b"a", b"b"]), batch(1, [b"c"])])
    driver.send("t", 0, [b"later"])
    assert send_numbered(driver, (SLOT, 1), [batch(0, [b"a", b"b"]), batch(1, [b"c"])]) == first
    assert driver.bodies("t", 0) == [b"a", b"b", b"later"]
    assert driver.bodies("t", 1) == [b"c"]


def test_a_repetition_for_another_queue_is_answered_with_the_first_place(driver: Driver) -> None:
    first = send_numbered(driver, (SLOT, 1), [QueueMessage(0, Message(b"a"))])
    assert send_numbered(driver, (SLOT, 1), [QueueMessage(1, Message(b"a"))]) == first
    assert driver.ends("t") == [1, 0]


def test_both_of_a_send_that_comes_twice_at_once_have_the_same_answer(driver: Driver) -> None:
    twice = [numbered(driver, (SLOT, 1), [batch(0, [b"a"])]) for _ in range(2)]
    between = numbered(driver, None, [batch(0, [b"b"])])
    first, _, second = burst(driver.store, [twice[0], between, twice[1]])
    assert first == second
    assert sorted(driver.bodies("t", 0)) == [b"a", b"b"]


def test_a_send_that_comes_behind_a_later_one_of_its_slot_is_refused(driver: Driver) -> None:
    send_numbered(driver, (SLOT, 2), [batch(0, [b"second"])])
    with pytest.raises(SendOutdated, match="after send 2 of the same slot"):
        send_numbered(driver, (SLOT, 1), [batch(0, [b"first"])])
    late = [numbered(driver, (SLOT, number), [batch(0, [b"%d" % number])]) for number in (4, 3)]
    _, refused = burst(driver.store, late)
    assert isinstance(refused, SendOutdated)
    assert driver.bodies("t", 0) == [b"second", b"4"]


def test_a_number_that_another_send_has_is_refused(driver: Driver) -> None:
    send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])])
    with pytest.raises(SendNumberReused, match="has 2 messages, and the send that was stored"):
        send_numbered(driver, (SLOT, 1), [batch(0, [b"b", b"c"])])
    assert driver.bodies("t", 0) == [b"a"]


def test_sends_of_other_slots_and_without_a_number_are_stored_as_often_as_they_come(driver: Driver) -> None:
    for number in ((SLOT, 1), (OTHER, 1), (SLOT, 2)):
        send_numbered(driver, number, [batch(0, [b"a"])])
    driver.send("t", 0, [b"a"])
    driver.send("t", 0, [b"a"])
    assert driver.ends("t") == [5, 0]


def test_a_refused_send_may_come_again_under_its_number(driver: Driver) -> None:
    with pytest.raises(TopicNotFound):
        send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])], topic="u")
    driver.create("u", 1)
    assert send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])], topic="u").appended[0].offset == 0


def test_a_send_that_found_the_disk_full_may_come_again_under_its_number() -> None:
    disk = Disk()
    with opened(config(), files=CrashingFiles(disk)) as driver:
        driver.create("t", 1)
        disk.fail("write", 28, path="commitlog")
        with pytest.raises(StoreFull):
            send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])])
        send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])])
        assert driver.bodies("t", 0) == [b"a"]


@pytest.mark.parametrize("how", ["close", "kill", "kill behind a snapshot", "without derived files"])
def test_a_send_is_known_after_a_restart(how: str) -> None:
    disk, sent = Disk(), [batch(0, [b"a"]), batch(1, [b"b"])]
    settings = config(flush=FlushMode.ASYNC, segment_bytes=4096)
    driver = Driver(MessageStore.open(settings, files=CrashingFiles(disk)))
    driver.create("t", 2)
    first = send_numbered(driver, (SLOT, 1), sent)
    for _ in range(9):
        # Further segments begin, each with a state frame.
        driver.send("t", 0, [bytes(1_500)])
    if how == "kill behind a snapshot":
        driver.store.take_snapshot()
    if how.startswith("kill"):
        disk.end_session()
    end_life(driver.store)
    if how == "without derived files":
        files = CrashingFiles(disk)
        for path in [*disk.paths("state"), *disk.paths("consumequeue")]:
            files.remove(path)
    with opened(settings, files=CrashingFiles(disk)) as driver:
        assert send_numbered(driver, (SLOT, 1), sent) == first
        assert driver.ends("t") == [10, 1]


def test_messages_whose_number_did_not_reach_the_log_are_not_kept(tmp_path: Path) -> None:
    settings, sent = config(tmp_path), [batch(0, [b"a"]), batch(1, [b"b"])]
    with opened(settings) as driver:
        driver.create("t", 2)
        driver.store.take_snapshot()
        send_numbered(driver, (SLOT, 1), sent)
    log = tmp_path / "commitlog" / f"{0:020d}"
    frames = [each.header for each in scan(log.read_bytes())]
    assert frames[-1].kind == FrameKind.CHANGE
    with log.open("r+b") as file:
        file.truncate(frames[-1].log_offset)
    # As after a crash in the midst of the write: only the snapshot before it counts.
    for name in ("state/snapshot", "state/clock"):
        (tmp_path / name).unlink()
    with opened(settings) as driver:
        assert driver.ends("t") == [0, 0]
        send_numbered(driver, (SLOT, 1), sent)
        assert driver.ends("t") == [1, 1]


def test_a_delayed_send_that_comes_again_keeps_its_timer_id(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(config(tmp_path), clock=clock) as driver:
        driver.create("t", 1)
        at_ms = driver.store.now_ms() + 60_000
        delayed = Message(b"a", properties={"TIMER_DELIVER_MS": str(at_ms)})
        made = held_batches(0, from_messages([delayed]), Horizon(driver.store.now_ms(), 1 << 40))
        first = send_numbered(driver, (SLOT, 1), made)
        assert first.appended[0].offset == NO_OFFSET
        assert first.timers[0] is not None
        assert send_numbered(driver, (SLOT, 1), made) == first
        clock.advance(120_000)
        assert send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])]) == first, "it is not delayed any more"
        assert driver.store.timers.statistics().scheduled == 1


def test_a_topic_that_was_deleted_does_not_make_a_repetition_a_new_send(driver: Driver) -> None:
    first = send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])])
    driver.delete("t")
    assert send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])]) == first


# --- what is forgotten ------------------------------------------------------------------


def fold(table: SlotTable, at_ms: int, *sends: NumberedSend) -> SlotTable:
    return table.apply(SendsNumbered(at_ms, sends), TopicTable())


def send_of(slot: int, batches: int = 1) -> NumberedSend:
    return NumberedSend(slot, 1, (PLACE,) * batches)


def test_a_slot_is_remembered_as_long_as_a_generation_lives_and_forgotten_after_two() -> None:
    table = fold(SlotTable(), 1_000, send_of(SLOT))
    table = fold(table, 1_000 + KEPT_MS - 1, send_of(1))
    assert table.find(SLOT) is not None
    table = fold(table, 1_000 + KEPT_MS, send_of(2))
    assert table.find(SLOT) is not None, "it is in the old generation now"
    table = fold(table, 1_000 + 2 * KEPT_MS, send_of(3))
    table = fold(table, 1_000 + 3 * KEPT_MS, send_of(4))
    assert table.find(SLOT) is None
    assert table.find(2) is None
    assert table.find(3) is not None


def test_a_picture_has_both_generations() -> None:
    table = fold(SlotTable(), 1_000, send_of(SLOT))
    table = fold(
        table, 1_000 + KEPT_MS, NumberedSend(1, 7, (PLACE, PLACE), (1, 1), (TimerPlace(64, 2), None))
    )
    table = fold(table, 2_000 + KEPT_MS, send_of(2, 3))
    assert len(table.old) == 2
    whole = Picture.of(State(slots=table), {}, 0)
    assert decode_picture(encode(whole)).state().slots == table


def test_a_clock_that_is_set_forward_forgets_nothing_at_once() -> None:
    table = fold(SlotTable(), 1_000, send_of(SLOT))
    table = fold(table, 1 << 50, send_of(1))
    assert table.find(SLOT) is not None


@pytest.mark.parametrize("batches", [1, 100])
def test_however_many_slots_there_are_the_table_stays_small(batches: int) -> None:
    table = SlotTable()
    most = 0
    for slot in range(3 * PLACES_MAX // batches):
        table = fold(table, 1_000, send_of(slot, batches))
        most = max(most, len(table))
    assert most * batches <= 2 * PLACES_MAX
    assert table.find(slot) is not None


def test_a_slot_that_is_used_again_and_again_counts_once() -> None:
    table = SlotTable()
    for sequence in range(2 * PLACES_MAX):
        table = fold(table, 1_000, NumberedSend(SLOT, sequence, (PLACE,)))
    assert (table.places, len(table)) == (1, 1)


def test_a_send_of_a_forgotten_slot_is_stored_again(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(config(tmp_path), clock=clock) as driver:
        driver.create("t", 1)
        send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])])
        for other in range(3):
            clock.advance(KEPT_MS)
            send_numbered(driver, (other, 1), [batch(0, [b"b"])])
        send_numbered(driver, (SLOT, 1), [batch(0, [b"a"])])
        assert driver.bodies("t", 0) == [b"a", b"b", b"b", b"b", b"a"]
