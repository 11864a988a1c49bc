"""What a receive reads of a queue: what ran out, whatever was settled between, and then what is new."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq.clock import ManualClock
from rocketq.model import MessageQueue
from rocketq.protocol.stored_rows import stored_messages
from rocketq_broker.data_plane.reads.leased_reads import Look, QueueCall, look
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.machines.queue_leases import offsets_of
from tests.support.leasing import TOPIC, acknowledge, begin, receive
from tests.support.store_driver import Driver, config, opened

GROUP = "g"
FRAMES = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def look_at(driver: Driver, messages_max: int, bytes_max: int = 1 << 22, attempts_max: int = 16) -> Look:
    standing = driver.store.leases.standing(GROUP, (TOPIC, 0), 1_000)
    assert standing is not None
    call = QueueCall(TOPIC, 0, None, messages_max, bytes_max, attempts_max)
    return look(driver.store, call, standing)


def found(each: Look) -> dict[int, bytes]:
    queue = MessageQueue(TOPIC, "b", 0)
    read = [message for piece in each.slices for message in stored_messages(queue, piece)]
    assert len({message.offset for message in read}) == len(read)
    return {message.offset: message.body for message in read}


def wished(each: Look) -> list[int]:
    again = [offset for run in each.wish.again for offset in offsets_of(run.ranges)]
    return [*again, *offsets_of(each.wish.new)]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=FRAMES, data=st.data(), limit=st.integers(1, 300))
def test_what_ran_out_comes_before_what_is_new_and_each_message_is_its_own(
    tmp_path_factory: pytest.TempPathFactory, frames: list[int], data: st.DataObject, limit: int
) -> None:
    clock = ManualClock()
    directory = tmp_path_factory.mktemp("store")
    with opened(config(directory, merge_bytes=0), clock=clock) as driver:
        driver.create(TOPIC, 1)
        begin(driver, GROUP, 1)
        for count in frames:
            first = driver.ends(TOPIC)[0]
            driver.send(TOPIC, 0, [b"%d" % (first + n) for n in range(count)])
        end = driver.ends(TOPIC)[0]
        some = receive(driver, GROUP, [0], 1_000, data.draw(st.integers(0, end)) or 1)
        done = data.draw(st.sets(st.sampled_from([each.handle for each in some])))
        if done:
            acknowledge(driver, GROUP, sorted(done))
        assert found(look_at(driver, 1)) == ({len(some): b"%d" % len(some)} if len(some) < end else {})
        clock.advance(2_000)
        left = sorted({each.handle.offset for each in some} - {each.offset for each in done})
        each = look_at(driver, limit)
        assert found(each) == {offset: b"%d" % offset for offset in wished(each)}
        whole = left + list(range(len(some), end))
        assert wished(each)[: len(left)] == left[:limit]
        # New messages are read frame by frame, so one look may find fewer than there are, but some.
        assert wished(each) == whole[: len(wished(each))]
        assert bool(wished(each)) == bool(whole)


def test_a_look_has_as_many_bytes_as_it_may_and_one_message_at_least(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create(TOPIC, 1)
        begin(driver, GROUP, 1)
        driver.send(TOPIC, 0, [bytes(1_000)] * 10)
        assert len(found(look_at(driver, 100, bytes_max=3_500))) == 3
        assert look_at(driver, 100, bytes_max=3_500).wish.next == 3
        assert len(found(look_at(driver, 100, bytes_max=1))) == 1


def test_messages_that_retention_removed_are_told_apart_from_those_that_are_there(tmp_path: Path) -> None:
    clock = ManualClock()
    keep = RetentionPolicy(retention_bytes=64 << 10)
    with opened(config(tmp_path, segment_bytes=32 << 10, retention=keep), clock=clock) as driver:
        driver.create(TOPIC, 1)
        begin(driver, GROUP, 1)
        for _ in range(40):
            driver.send(TOPIC, 0, [bytes(500)] * 10)
        assert len(receive(driver, GROUP, [0], 1_000)) == 400
        clock.advance(2_000)
        driver.store.retain()
        low = driver.store.offsets(TOPIC).queues[0].min
        assert low > 0
        each = look_at(driver, 1_000)
        assert list(found(each)) == list(range(low, 400))
        assert [offset for run in each.lost for offset in offsets_of(run.ranges)] == list(range(low))


def test_messages_that_had_their_last_attempt_are_no_wish(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(config(tmp_path), clock=clock) as driver:
        driver.create(TOPIC, 1)
        begin(driver, GROUP, 1)
        driver.send(TOPIC, 0, [b"m"] * 5)
        receive(driver, GROUP, [0], 1_000, 3)
        clock.advance(2_000)
        each = look_at(driver, 4, attempts_max=1)
        assert [(run.attempt, list(offsets_of(run.ranges))) for run, _ in each.dead] == [(1, [0, 1, 2])]
        assert wished(each) == [3, 4]
