"""Files written by an earlier build decode to what they were made of, and are made again byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rocketq.clock import ManualClock
from rocketq.errors import SendOutdated
from rocketq.errors.documents import from_document
from rocketq.model import Appended, GroupKind, MessageQueue, PullStatus, QueueOffsets, StartFrom, TimerId
from rocketq.protocol.arrow.stream_reader import read_stream
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import GroupOffset
from rocketq.protocol.documents.groups import GroupSettings, StartRule
from rocketq.protocol.frame import scan
from rocketq.protocol.frame_slices import open_batch, open_frames
from rocketq.protocol.hashing import hash_column
from rocketq_broker.store.log.consume_queue import UNIT, UNIT_BYTES
from rocketq_broker.store.machines.group_table import GroupEntry
from rocketq_broker.store.machines.queue_leases import Run
from rocketq_broker.store.store import MessageStore, QueueBatch
from rocketq_broker.store.timers.entries import last_tick
from rocketq_broker.store.timers.timer_index import entries_of
from rocketq_broker.store.transactions.parked_batches import PARKING_TOPIC
from tests.golden import specimens
from tests.golden.specimens import CODECS, ERRORS, FILES, FRAMES, KEYS
from tests.support.numbered_sends import send_numbered
from tests.support.store_driver import batch, config, opened
from tests.support.timed_store import timed


@pytest.mark.parametrize("name", FRAMES)
def test_a_golden_frame_decodes_to_its_fields(name: str) -> None:
    fields = FRAMES[name]
    [frame] = scan((FILES / f"{name}.frame").read_bytes())
    header = frame.header
    assert frame.topic.encode() == fields["topic"]
    assert header.durable_end == fields["durable_end"]
    told = {field: getattr(header, field) for field in fields if field not in ("topic", "durable_end")}
    assert told == {field: value for field, value in fields.items() if field in told}


@pytest.mark.parametrize("name", FRAMES)
def test_a_golden_frame_is_made_again_byte_for_byte(name: str) -> None:
    data = (FILES / f"{name}.frame").read_bytes()
    [frame] = scan(data)
    assert specimens.frame(name, frame.body.to_pybytes()) == data


@pytest.mark.parametrize("name", ["messages", "messages-zstd", "messages-published", "messages-unfinished"])
def test_the_messages_in_a_golden_frame_are_those_it_was_made_of(name: str) -> None:
    [frame] = scan((FILES / f"{name}.frame").read_bytes())
    assert open_batch(frame) == specimens.batch()


def test_messages_of_a_golden_filtered_frame_keep_offset_and_time() -> None:
    pieces = open_frames((FILES / "filtered.frame").read_bytes(), 0)
    assert pa.concat_batches([piece.batch for piece in pieces]) == specimens.batch()
    assert tuple(offset for piece in pieces for offset in piece.offsets()) == specimens.FILTERED_OFFSETS
    told = tuple((each.header.log_offset, each.header.stored_at_us, each.header.count) for each in pieces)
    assert told == specimens.FILTERED_SOURCES


@pytest.mark.parametrize("name", ["state", "change", "lost"])
def test_a_golden_frame_of_state_holds_its_document(name: str) -> None:
    [frame] = scan((FILES / f"{name}.frame").read_bytes())
    assert json.loads(frame.body.to_pybytes()) == {"specimen": name}


@pytest.mark.parametrize("codec", CODECS)
def test_a_golden_stream_holds_its_batches(codec: str) -> None:
    read = read_stream((FILES / f"{codec}.stream").read_bytes())
    assert [message.batch for message in read] == [specimens.batch(), specimens.batch().slice(1)]


def test_keys_still_hash_to_their_golden_values() -> None:
    golden = json.loads((FILES / "key_hashes.json").read_text())
    keys = [bytes.fromhex(key) for key in golden]
    assert keys == list(KEYS)
    expected = [int(value, 16) for value in golden.values()]
    assert hash_column(pa.array(keys, pa.binary())).tolist() == expected
    # Many rows take another way through the hash than few.
    assert hash_column(pa.array(keys * 10, pa.binary())).tolist() == expected * 10


def test_golden_error_documents_still_become_their_errors() -> None:
    golden = json.loads((FILES / "errors.json").read_text())
    assert len(golden) == len(ERRORS)
    for entry, made in zip(golden, ERRORS, strict=True):
        read = from_document(entry["document"], entry["status"])
        assert type(read) is type(made)
        assert vars(read) == vars(made)
        assert (made.status, made.document()) == (entry["status"], entry["document"])


def test_golden_units_decode_and_encode_byte_for_byte() -> None:
    data = (FILES / "units.bin").read_bytes()
    read = np.frombuffer(data, dtype=UNIT)
    assert len(data) == UNIT_BYTES * len(specimens.TAGS)
    log_offset, size = specimens.UNITS_AT
    assert set(read["log_offset"].tolist()) == {log_offset}
    assert set(read["size"].tolist()) == {size}
    assert read["tag_hash"].tolist() == hash_column(pa.array(specimens.TAGS, pa.string())).tolist()
    assert specimens.unit_bytes() == data


@pytest.mark.parametrize("name", ["commitlog-sinks", "commitlog-sinks-rows"])
def test_a_broker_starts_from_a_golden_log_of_sinks_alone(tmp_path: Path, name: str) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").write_bytes((FILES / name).read_bytes())
    store = MessageStore.open(config(tmp_path), clock=ManualClock())
    try:
        told = {each.sink: each for each in store.sinks.descriptions()}
        assert told.keys() == {"etl", "reset"}
        etl = told["etl"]
        assert (etl.run, etl.query, etl.decided) == ("run-1", "query-1", 0)
        assert [(each.batch, each.brokers) for each in etl.pending] == [(0, ("broker-b",))]
        assert [(each.batch, each.frames, each.messages) for each in etl.stages] == [(1, 1, 3)]
        assert store.sinks.table.sinks["reset"].superseded == ("run-0", "run-1")
        assert store.sinks.table.has_published(("etl", 0, "run-1"))
        [decision] = store.sinks.table.sinks["etl"].decisions
        assert decision.total == sum(specimens.ROWS.values())
        assert decision.rows == (specimens.ROWS if name.endswith("rows") else None)
        found = store.pull("orders", 0, 0, max_bytes=1 << 20)
        [piece] = open_frames(b"".join(found.chunks), 0)
        assert (piece.batch, piece.header.published) == (specimens.batch(), True)
    finally:
        store.close()


def test_a_broker_starts_from_a_golden_log_of_transactions_alone(tmp_path: Path) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").write_bytes((FILES / "commitlog-transactions").read_bytes())
    store = MessageStore.open(config(tmp_path), clock=ManualClock())
    try:
        table = store.transactions.table
        assert {each.id: (each.checks, each.is_parked) for each in table.open.values()} == {
            "checked": (1, False),
            "parked": (0, True),
        }
        assert dict(table.decided.items()) == {"committed": True, "rolled-back": False}
        assert store.offsets("orders").queues == (QueueOffsets(0, 0), QueueOffsets(0, 3))
        found = store.pull("orders", 1, 0, max_bytes=1 << 20)
        [piece] = open_frames(b"".join(found.chunks), 0)
        assert (piece.batch, piece.header.published) == (specimens.batch(), True)
        assert store.offsets(PARKING_TOPIC).total == 3
    finally:
        store.close()


def test_a_broker_knows_numbered_sends_from_a_golden_log(tmp_path: Path) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").write_bytes((FILES / "commitlog-numbered").read_bytes())
    with opened(config(tmp_path), clock=ManualClock()) as driver:
        ends = driver.ends("orders")
        [sent] = read_stream(write_stream([specimens.batch()]))
        both = [QueueBatch(queue, sent.encapsulated, sent.batch) for queue in (0, 1)]
        again = send_numbered(driver, (7, 1), both[:1], "orders")
        assert again.appended == (Appended(0, 3, 3),)
        again = send_numbered(driver, (8, 4), both, "orders")
        assert (again.appended, again.pieces) == ((Appended(0, 6, 3), Appended(1, 0, 3)), (2,))
        with pytest.raises(SendOutdated):
            send_numbered(driver, (7, 0), both[:1], "orders")
        place = send_numbered(driver, (9, 0), [batch(1, [b"later"])], "orders").timers[0]
        assert place is not None
        held = driver.store.timers.find(TimerId(MessageQueue("orders", driver.store.broker, 1), *place))
        assert held.message.column("body").to_pylist() == [b"later"]
        assert driver.ends("orders") == ends == [9, 3]


def test_a_broker_reads_the_records_of_topics_from_a_golden_log(tmp_path: Path) -> None:
    for name, expected in {
        "commitlog-records": {"orders": ("broker-a", "broker-c"), "plain": ()},
        "commitlog": {"orders": ()},
    }.items():
        log = tmp_path / name / "commitlog"
        log.mkdir(parents=True)
        (log / f"{0:020d}").write_bytes((FILES / name).read_bytes())
        store = MessageStore.open(config(tmp_path / name), clock=ManualClock())
        try:
            assert {topic.name: topic.brokers for topic in store.topics()} == expected
        finally:
            store.close()


def test_a_broker_starts_from_a_golden_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").write_bytes((FILES / "commitlog").read_bytes())
    store = MessageStore.open(config(tmp_path), clock=ManualClock())
    try:
        assert [topic.name for topic in store.topics()] == ["orders"]
        assert store.offsets("orders").queues == (QueueOffsets(0, 3), QueueOffsets(0, 3))
        [progress] = store.group_offsets("billing").offsets
        assert (progress.topic, progress.queue, progress.offset) == ("orders", 0, 2)
        for queue in (0, 1):
            found = store.pull("orders", queue, 0, max_bytes=1 << 20)
            assert found.status == PullStatus.FOUND
            [piece] = open_frames(b"".join(found.chunks), 0)
            assert piece.batch == specimens.batch()
    finally:
        store.close()


def test_a_broker_reads_groups_and_their_owners_from_a_golden_log(tmp_path: Path) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").write_bytes((FILES / "commitlog-groups").read_bytes())
    store = MessageStore.open(config(tmp_path), clock=ManualClock())
    try:
        groups = store.consumer_groups
        assert store.groups() == ("billing", "query", "revoked")
        settings = GroupSettings(retries_max=3, start=StartRule(StartFrom.TIME, 7))
        assert groups.entry("billing") == GroupEntry(settings, GroupKind.CONSUMERS)
        assert groups.entry("query") == GroupEntry(GroupSettings(), GroupKind.SPARK)
        assert dict(groups.claims("billing").items()) == {("orders", 1): ("b@2", 2)}
        assert dict(groups.claims("revoked").items()) == {}
        told = {each: store.group_offsets(each).offsets for each in store.groups()}
        assert told == {
            "billing": (GroupOffset("orders", 0, 3),),
            "query": (GroupOffset("orders", 1, 1),),
            "revoked": (GroupOffset("orders", 0, 1),),
        }
    finally:
        store.close()


def test_a_broker_reads_leases_from_a_golden_log(tmp_path: Path) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").write_bytes((FILES / "commitlog-leases").read_bytes())
    store = MessageStore.open(config(tmp_path), clock=ManualClock())
    try:
        table = store.leases.table
        leases = table.of_queue("receivers", ("orders", 1))
        assert leases is not None
        assert (leases.begin, leases.next, leases.count) == (1, 3, 2)
        begun_ms = ManualClock().now_us() // 1000
        assert leases.run_at(0, 1) == Run(0b010, begun_ms + 60_000, 1)
        assert leases.run_at(1, 2) == Run(0b100, begun_ms + 120_000, 1)
        assert table.filter_of("receivers", "orders") == "tag paid"
        progress = {each.queue: each.offset for each in store.group_offsets("receivers").offsets}
        assert progress == {0: 0, 1: 1}
    finally:
        store.close()


def test_a_golden_frame_of_delayed_messages_says_when_each_is_due() -> None:
    [frame] = scan((FILES / "delayed.frame").read_bytes())
    entries = entries_of(frame)
    stored_ms = frame.header.stored_at_us // 1000
    assert entries["due_ms"].tolist() == [last_tick(stored_ms), *specimens.DELIVERY_TIMES[1:]]
    assert entries["row"].tolist() == [0, 1, 2]
    assert {(int(each["queue"]), int(each["topic"])) for each in entries} == {(2, 4)}


def test_a_broker_starts_from_a_golden_log_of_timers_alone(tmp_path: Path) -> None:
    log, clock = tmp_path / "commitlog", ManualClock()
    log.mkdir()
    (log / f"{0:020d}").write_bytes((FILES / "commitlog-timers").read_bytes())
    with timed(tmp_path, clock) as driver:
        assert (driver.store.timers.table.outstanding, driver.store.timers.table.cancelled_count) == (2, 1)
        assert driver.bodies("orders", 0) == [b"due at 5"]
        now = driver.now_ms
        driver.pass_time(1_300_000)
        later = [b"due at %d" % (now + delay) for delay in (10_000, 20_000)]
        assert driver.bodies("orders", 0) == [b"due at 5", *later]
