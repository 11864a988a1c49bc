"""What is appended is pulled: whole, in order, at the offset that was answered, however it lies in files."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import (
    NoPermission,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
)
from rocketq.model import FlushMode, Message, PullStatus, SendStatus, TimeBoundary
from rocketq.protocol.frame import FrameKind
from rocketq.protocol.frame_slices import open_frames
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.store.commit.small_batches import QueueMessage
from rocketq_broker.store.disk.files import OSFiles
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.state.state import decode_picture
from tests.support.store_driver import ANSWER_S, answer, barrier, batch, burst, config, opened


def frames(directory: Path) -> CommitLog:
    files = OSFiles(directory)
    return CommitLog(files, Handles(files, 8))


def test_messages_come_back_whole_at_the_offset_that_was_answered(tmp_path: Path) -> None:
    sent = [
        Message(b"body", key=b"k", tag="paid", properties={"amount": "42", "": ""}, born_at_us=1_700_000_000),
        Message(b"", key=None, tag=None, properties=None, born_at_us=None),
        Message(bytes(range(256)), key=b"", tag="", properties={}, born_at_us=-1),
    ]
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 2)
        assert driver.send("orders", 1, sent) == 0
        assert driver.send("orders", 1, sent) == 3
        pieces = driver.slices("orders", 1)
        rows = [row for piece in pieces for row in piece.batch.to_pylist()]
    assert [row["body"] for row in rows] == [message.body for message in sent] * 2
    assert [row["key"] for row in rows[:3]] == [b"k", None, b""]
    assert [row["tag"] for row in rows[:3]] == ["paid", None, ""]
    assert [row["properties"] for row in rows[:3]] == [[("amount", "42"), ("", "")], None, []]
    assert [piece.offset for piece in pieces] == [0, 3]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch_is_stored_as_it_was_sent(tmp_path: Path, codec: str) -> None:
    sent = batch(0, [b"x" * 10_000, b"y" * 10_000], codec)
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 1)
        driver.append("orders", [sent])
        chunk = b"".join(driver.store.pull("orders", 0, 0, max_bytes=1).chunks)
        assert driver.bodies("orders", 0) == [b"x" * 10_000, b"y" * 10_000]
    assert bytes(sent.encapsulated) in chunk


def test_one_append_may_address_many_queues_and_is_answered_in_its_order(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 3)
        outcome = driver.append(
            "orders", [batch(2, [b"a"]), batch(0, [b"b", b"c"]), batch(2, [b"d"]), batch(1, [b"e"])]
        )
        assert outcome.status is SendStatus.SEND_OK
        assert [(a.queue, a.offset, a.count) for a in outcome.appended] == [
            (2, 0, 1), (0, 0, 2), (2, 1, 1), (1, 0, 1),
        ]  # fmt: skip
        assert [driver.bodies("orders", queue) for queue in range(3)] == [[b"b", b"c"], [b"e"], [b"a", b"d"]]


def test_small_batches_of_a_group_become_one_frame_and_keep_their_order(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 2)
        sends = [partial(driver.store.append, "orders", [batch(n % 2, [b"%d" % n])]) for n in range(10)]
        outcomes = burst(driver.store, sends)
        assert [outcome.appended[0].offset for outcome in outcomes] == [n // 2 for n in range(10)]
        for queue in (0, 1):
            pieces = driver.slices("orders", queue)
            assert [piece.header.count for piece in pieces] == [5]
            assert driver.bodies("orders", queue) == [b"%d" % n for n in range(queue, 10, 2)]


def test_messages_and_batches_of_a_group_share_a_frame_in_their_order(tmp_path: Path) -> None:
    sent = [
        Message(b"0", key=b"k", tag="a", properties={"KEYS": "x"}, born_at_us=7),
        *(Message(b"%d" % number, tag="ü" if number % 2 else None) for number in range(1, 8)),
    ]
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 1)
        addressed = [
            batch(0, [each.body]) if at in (3, 4) else QueueMessage(0, each) for at, each in enumerate(sent)
        ]
        outcomes = burst(driver.store, [partial(driver.store.append, "orders", [each]) for each in addressed])
        assert [outcome.appended[0].offset for outcome in outcomes] == list(range(8))
        (piece,) = driver.slices("orders", 0)
        expected = [Message(each.body) if at in (3, 4) else each for at, each in enumerate(sent)]
        assert piece.batch.drop_columns("born_at") == from_messages(expected).drop_columns("born_at")
        assert piece.batch.column("born_at")[0].value == 7


def test_large_batches_are_never_merged(tmp_path: Path) -> None:
    with opened(config(tmp_path, merge_bytes=1000)) as driver:
        driver.create("orders", 1)
        sizes = [1, 1, 5000, 1, 5000, 5000, 1, 1]
        sends = [partial(driver.store.append, "orders", [batch(0, [b"x" * size])]) for size in sizes]
        burst(driver.store, sends)
        assert [piece.header.count for piece in driver.slices("orders", 0)] == [2, 1, 1, 1, 1, 2]
        assert [len(body) for body in driver.bodies("orders", 0)] == sizes


def test_an_append_to_a_missing_queue_stores_nothing_of_it_at_all(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 2)
        with pytest.raises(QueueNotFound):
            driver.append("orders", [batch(0, [b"a"]), batch(2, [b"b"])])
        with pytest.raises(TopicNotFound):
            driver.append("refunds", [batch(0, [b"a"])])
        assert driver.ends("orders") == [0, 0]


def test_each_senders_order_is_kept_whoever_else_sends(tmp_path: Path) -> None:
    with opened(config(tmp_path, flush=FlushMode.ASYNC, segment_bytes=20_000)) as driver:
        driver.create("orders", 1)
        futures: list[Future[Any]] = []

        def send_all(sender: int) -> None:
            for number in range(100):
                future: Future[Any] = Future()
                futures.append(future)
                driver.store.append("orders", [batch(0, [b"%d:%d" % (sender, number)])], future.set_result)

        senders = [threading.Thread(target=send_all, args=(sender,)) for sender in range(4)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        offsets = [future.result(ANSWER_S).appended[0].offset for future in futures]
        bodies = driver.bodies("orders", 0)
    assert sorted(offsets) == list(range(400))
    for name in range(4):
        mine = [body for body in bodies if body.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, number) for number in range(100)]


# --- pulling ---------------------------------------------------------------------------


def test_a_pull_begins_at_any_offset_and_ends_at_its_limits(tmp_path: Path) -> None:
    rng = random.Random(4)
    with opened(config(tmp_path, segment_bytes=9000, queue_file_units=7)) as driver:
        driver.create("orders", 1)
        sent: list[bytes] = []
        while len(sent) < 200:
            bodies = [
                b"%d" % (len(sent) + n) + bytes(rng.choice((0, 50, 400)))
                for n in range(rng.choice((1, 2, 9, 30)))
            ]
            driver.send("orders", 0, bodies)
            sent += bodies
        for offset in [0, 1, len(sent) - 1, *(rng.randrange(len(sent)) for _ in range(40))]:
            max_messages = rng.choice((None, 1, 5, 50))
            max_bytes = rng.choice((1, 500, 3000, 1 << 20))
            result = driver.store.pull("orders", 0, offset, max_bytes=max_bytes, max_messages=max_messages)
            assert result.status is PullStatus.FOUND
            assert (result.min_offset, result.max_offset) == (0, len(sent))
            pieces = open_frames(b"".join(result.chunks), offset)
            got = [body for piece in pieces for body in piece.batch.column("body").to_pylist()]
            assert got == sent[offset : result.next_offset]
            assert result.next_offset == offset + len(got)
            whole = [piece.header for piece in pieces]
            # The last frame is the one that reached a limit; without it both were kept.
            assert sum(header.size for header in whole[1:]) <= max_bytes
            if max_messages is not None:
                assert sum(piece.batch.num_rows for piece in pieces[:-1]) < max_messages
            assert driver.bodies("orders", 0, offset) == sent[offset:]


def test_a_pull_at_the_end_is_empty_and_beyond_it_is_refused(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 1)
        empty = driver.store.pull("orders", 0, 0, max_bytes=1)
        assert (empty.status, empty.chunks, empty.max_offset) == (PullStatus.NO_NEW_MSG, [], 0)
        driver.send("orders", 0, [b"a", b"b"])
        result = driver.store.pull("orders", 0, 2, max_bytes=1)
        assert (result.status, result.next_offset) == (PullStatus.NO_NEW_MSG, 2)
        for offset in (3, -1):
            with pytest.raises(OffsetOutOfRange) as caught:
                driver.store.pull("orders", 0, offset, max_bytes=1)
            assert (caught.value.min_offset, caught.value.max_offset) == (0, 2)
        with pytest.raises(QueueNotFound):
            driver.store.pull("orders", 1, 0, max_bytes=1)
        with pytest.raises(TopicNotFound):
            driver.store.pull("refunds", 0, 0, max_bytes=1)


def test_a_topic_without_read_permission_is_not_pulled(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("orders", 1, perm=2)
        with pytest.raises(NoPermission):
            driver.store.pull("orders", 0, 0, max_bytes=1)


def test_a_sender_with_an_answer_can_read_its_messages(tmp_path: Path) -> None:
    """Also on the writer's thread, inside `done`, and inside `on_arrival`."""
    seen: list[list[bytes]] = []
    arrived: list[Any] = []
    with opened(config(tmp_path), on_arrival=arrived.append) as driver:
        driver.create("orders", 1)
        finished = threading.Event()

        def done(outcome: Any) -> None:
            seen.append(driver.bodies("orders", 0))
            finished.set()

        driver.store.append("orders", [batch(0, [b"a"])], done)
        assert finished.wait(ANSWER_S)
        answer(partial(lambda done: barrier(done, driver.store)))
        assert seen == [[b"a"]]
        assert arrived == [{("orders", 0)}]


def test_nothing_is_readable_before_it_is_on_disk_under_sync_flush(tmp_path: Path) -> None:
    """A reader that sees a message which a power cut takes back has read what never was."""
    from tests.support.crashing_files import CrashingFiles
    from tests.support.disk import Disk

    disk = Disk()
    with opened(config(segment_bytes=8192), CrashingFiles(disk)) as driver:
        driver.create("orders", 1)
        readable: list[int] = []

        def watch(kind: str, path: str) -> None:
            if kind == "sync" and path.startswith("commitlog"):
                readable.append(driver.ends("orders")[0])

        disk.watch = watch
        for number in range(5):
            driver.send("orders", 0, [b"%d" % number])
        disk.watch = None
    assert readable == [0, 1, 2, 3, 4]


def test_a_slow_sync_is_answered_in_time_and_the_message_is_kept() -> None:
    """FLUSH_DISK_TIMEOUT: stored, and not known to be on disk; the sender need not wait for ever."""
    from tests.support.crashing_files import CrashingFiles
    from tests.support.disk import Disk

    disk = Disk()
    with opened(config(flush_timeout_ms=1), CrashingFiles(disk)) as driver:
        driver.create("orders", 1)
        answered = threading.Event()

        def watch(kind: str, path: str) -> None:
            if kind == "sync" and path.startswith("commitlog"):
                disk.watch = None
                assert answered.wait(ANSWER_S)

        disk.watch = watch
        outcomes: list[Any] = []

        def done(outcome: Any) -> None:
            outcomes.append(
                (outcome.status, outcome.appended[0].offset, driver.store.offsets("orders").total)
            )
            answered.set()

        driver.store.append("orders", [batch(0, [b"slow"])], done)
        assert answered.wait(ANSWER_S)
        assert driver.send("orders", 0, [b"next"]) == 1
        assert outcomes == [(SendStatus.FLUSH_DISK_TIMEOUT, 0, 0)], "once, and before it can be read"
        assert driver.bodies("orders", 0) == [b"slow", b"next"]


# --- files -------------------------------------------------------------------------------


def test_segments_have_no_gaps_and_begin_with_the_whole_state(tmp_path: Path) -> None:
    with opened(config(tmp_path, segment_bytes=6000)) as driver:
        driver.create("orders", 2)
        for number in range(40):
            driver.send("orders", number % 2, [b"%d" % number * 200])
            driver.commit("billing", "orders", number % 2, number // 2)
        ends = driver.ends("orders")
        assert len(driver.bodies("orders", 0)) == 20
    log = frames(tmp_path)
    assert len(log.starts) > 5
    log.check_no_hole()
    counted = [0, 0]
    progress: dict[int, int] = {}
    for start, stop in itertools.zip_longest(log.starts, log.starts[1:]):
        headed = next(log.frames(start))
        assert headed.header.kind == FrameKind.STATE
        picture = decode_picture(headed.body.to_pybytes())
        assert [each.config.name for each in picture.topics] == ([] if start == 0 else ["orders"])
        for number, row in picture.ranges.items():
            assert number == 0
            assert [each.end for each in row] == counted, "the picture is of exactly this point of the log"
        offsets = {each.queue: each.offset for each in picture.groups.get("billing", ())}
        assert offsets == progress
        for frame in log.frames(start, stop):
            if frame.header.kind == FrameKind.MESSAGES:
                counted[frame.header.queue] += frame.header.count
            elif frame.header.kind == FrameKind.CHANGE and b"billing" in frame.body.to_pybytes():
                queue = counted.index(max(counted)) if counted[0] != counted[1] else 1
                progress[queue] = counted[queue] - 1
    assert counted == ends


def test_a_picture_counts_what_its_own_group_wrote_before_it(tmp_path: Path) -> None:
    """A group that fills several segments: each begins with where the queues are at that very point."""
    with opened(config(tmp_path, segment_bytes=4096, merge_bytes=0)) as driver:
        driver.create("orders", 2)
        sends = [partial(driver.store.append, "orders", [batch(n % 2, [b"x" * 1500])]) for n in range(20)]
        burst(driver.store, sends)
    log = frames(tmp_path)
    counted = [0, 0]
    pictures = 0
    for frame in log.frames(0):
        if frame.header.kind == FrameKind.MESSAGES:
            counted[frame.header.queue] += frame.header.count
        elif frame.header.kind == FrameKind.STATE and frame.header.log_offset:
            assert [each.end for each in decode_picture(frame.body.to_pybytes()).ranges[0]] == counted
            pictures += 1
    assert pictures > 5
    assert counted == [10, 10]


def test_a_frame_larger_than_a_segment_gets_a_segment_of_its_own(tmp_path: Path) -> None:
    with opened(config(tmp_path, segment_bytes=4096)) as driver:
        driver.create("orders", 1)
        for size in (10, 20_000, 10, 9000):
            driver.send("orders", 0, [b"x" * size])
    with opened(config(tmp_path, segment_bytes=4096)) as driver:
        assert [len(body) for body in driver.bodies("orders", 0)] == [10, 20_000, 10, 9000]


def test_a_queue_of_many_files_is_read_across_them(tmp_path: Path) -> None:
    with opened(config(tmp_path, queue_file_units=5)) as driver:
        driver.create("orders", 1)
        driver.send("orders", 0, [b"%d" % n for n in range(3)])
        driver.send("orders", 0, [b"%d" % n for n in range(3, 25)])
        driver.send("orders", 0, [b"25"])
        assert len([each for each in (tmp_path / "consumequeue/0/0").iterdir() if not each.suffix]) == 6
        for offset in range(27):
            assert driver.bodies("orders", 0, offset) == [b"%d" % n for n in range(offset, 26)]
    with opened(config(tmp_path, queue_file_units=5)) as driver:
        assert driver.send("orders", 0, [b"26"]) == 26
        assert driver.bodies("orders", 0) == [b"%d" % n for n in range(27)]


def test_hundreds_of_queues_cost_a_bounded_number_of_open_files(tmp_path: Path) -> None:
    with opened(config(tmp_path, open_files_max=8, flush=FlushMode.ASYNC)) as driver:
        driver.create("wide", 300)
        burst(
            driver.store,
            [partial(driver.store.append, "wide", [batch(queue, [b"%d" % queue])]) for queue in range(300)],
        )
        # What a batch sent in one group cost is given up as the next is opened.
        assert driver.store.statistics().open_files <= 8
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        for queue in range(300):
            assert driver.bodies("wide", queue) == [b"%d" % queue]
            assert driver.store.statistics().open_files <= 8
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 8
        driver.store.take_snapshot()
        assert driver.store.statistics().open_files <= 8


# --- time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("derived", ["nothing", "state"])
def test_store_times_never_decrease_even_if_the_clock_is_set_back(tmp_path: Path, derived: str) -> None:
    later, earlier = ManualClock(2_000_000_000), ManualClock(1_000_000_000)
    for clock in (later, earlier):
        shutil.rmtree(tmp_path / derived, ignore_errors=True)
        with opened(config(tmp_path), clock=clock) as driver:
            if clock is later:
                driver.create("orders", 1)
            driver.send("orders", 0, [b"x"])
            times = [piece.header.stored_at_us for piece in driver.slices("orders", 0)]
    assert times == [2_000_000_000, 2_000_000_000]


@pytest.mark.parametrize("units", [3, 1000])
def test_a_time_finds_the_first_message_after_or_the_last_before_it(tmp_path: Path, units: int) -> None:
    clock = ManualClock(1_000_000)
    counts = [3, 1, 5, 2, 8]
    stored: list[int] = []
    with opened(config(tmp_path, queue_file_units=units, segment_bytes=4096), clock=clock) as driver:
        driver.create("orders", 2)
        for count in counts:
            clock.advance(10)
            driver.send("orders", 0, [b"x" * 300] * count)
            stored += [clock.now_us()] * count

        def at(time_us: int, boundary: TimeBoundary) -> int:
            found = driver.store.offsets_at("orders", time_us, boundary).offsets
            assert found[1] == 0, "a queue without messages has nothing but its beginning"
            return found[0]

        for time_us in range(1_000_000, 1_070_000, 2500):
            first_after = next((i for i, t in enumerate(stored) if t >= time_us), len(stored))
            last_before = max((i for i, t in enumerate(stored) if t <= time_us), default=0)
            assert at(time_us, TimeBoundary.LOWER) == first_after
            assert at(time_us, TimeBoundary.UPPER) == last_before


# --- pressure and the end ------------------------------------------------------------------------
