"""What the golden files hold, as values; and how to make the files anew.

    python -m tests.golden.specimens

writes every file of `v1/` from the values below. Run it only when format version 1
is meant to change, before its first release, or to add a specimen: a file once
released must decode for ever.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rocketq import errors
from rocketq.clock import ManualClock
from rocketq.errors import message_errors
from rocketq.model import GroupKind, Message, MessageQueue, StartFrom, TimerId, TransactionState
from rocketq.protocol.arrow.stream_reader import read_stream
from rocketq.protocol.arrow.stream_writer import encapsulate, write_stream
from rocketq.protocol.documents.broker import (
    AlterTopicRequest,
    CommitOffsetsRequest,
    CreateTopicRequest,
    GroupOffset,
)
from rocketq.protocol.documents.groups import (
    ClaimedOffset,
    ClaimRequest,
    MemberCommit,
    QueueOfTopic,
    SetGroupRequest,
    StartRule,
)
from rocketq.protocol.documents.sinks import (
    CommitBatchRequest,
    Participant,
    PublishBatchRequest,
    Staged,
    StageName,
)
from rocketq.protocol.documents.transactions import HalfName
from rocketq.protocol.frame import FrameKind, encode
from rocketq.protocol.frame_slices import SOURCE, filtered_body
from rocketq.protocol.hashing import hash_column, hash_value
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import with_times
from rocketq.protocol.send_number import SendNumber
from rocketq_broker.store.commit.delayed_batches import delayed_batches
from rocketq_broker.store.leases.decisions import Wish
from rocketq_broker.store.log.consume_queue import units
from rocketq_broker.store.store import MessageStore, QueueBatch
from rocketq_broker.store.transactions.parked_batches import PARKING_TOPIC
from tests.support.leasing import acknowledge, begin, change_time, given, take
from tests.support.store_driver import Driver, answer, config

FILES: Final = Path(__file__).parent / "v1"

MESSAGES: Final = (
    Message(b"plain"),
    Message(b"", key=b"", tag="", properties={}, born_at_us=0),
    Message(
        b"\x00\xff" * 20,
        key=b"order-17",
        tag="größer",
        properties={"region": "eu", "KEYS": "a b"},
        born_at_us=1_700_000_000_123_456,
    ),
)
CODECS: Final = ("none", "lz4", "zstd")

#: Each frame's fields; the body is what the file of the same name ends with.
FRAMES: Final[dict[str, dict[str, Any]]] = {
    "messages": {
        "kind": FrameKind.MESSAGES, "topic": b"orders", "queue": 3, "queue_offset": 41, "count": 3,
        "log_offset": 8_192, "stored_at_us": 1_700_000_000_654_321, "durable_end": 4_096, "epoch": 2,
        "has_keys": True,
    },
    "messages-zstd": {
        "kind": FrameKind.MESSAGES, "topic": b"%RETRY%billing", "queue": 0, "queue_offset": 2**40, "count": 3,
        "log_offset": 2**41, "stored_at_us": 1, "durable_end": 2**41, "has_keys": True,
    },
    "state": {
        "kind": FrameKind.STATE, "topic": b"", "log_offset": 0, "stored_at_us": 5, "durable_end": 0,
    },
    "change": {
        "kind": FrameKind.CHANGE, "topic": b"", "log_offset": 16, "stored_at_us": -1, "durable_end": 8,
    },
    "lost": {
        "kind": FrameKind.LOST, "topic": b"", "log_offset": 64, "stored_at_us": 6, "durable_end": 0,
    },
    "staged": {
        "kind": FrameKind.STAGED, "topic": b"orders", "queue": 2, "queue_offset": 17, "count": 3,
        "log_offset": 128, "stored_at_us": 7, "durable_end": 64,
    },
    "messages-published": {
        "kind": FrameKind.MESSAGES, "topic": b"orders", "queue": 2, "queue_offset": 5, "count": 3,
        "log_offset": 256, "stored_at_us": 8, "durable_end": 64, "has_keys": True, "published": True,
    },
    "messages-unfinished": {
        "kind": FrameKind.MESSAGES, "topic": b"orders", "queue": 0, "queue_offset": 6, "count": 3,
        "log_offset": 512, "stored_at_us": 10, "durable_end": 64, "has_keys": True, "unfinished": True,
    },
    "delayed": {
        "kind": FrameKind.DELAYED, "topic": b"orders", "queue": 2, "queue_offset": 4, "count": 3,
        "log_offset": 1_024, "stored_at_us": 1_700_000_000_654_321, "durable_end": 64,
    },
    "half": {
        "kind": FrameKind.HALF, "topic": b"orders", "queue": 1, "queue_offset": 9, "count": 3,
        "log_offset": 2_048, "stored_at_us": 1_700_000_000_654_321, "durable_end": 64,
    },
    "filtered": {
        "kind": FrameKind.FILTERED, "topic": b"orders", "queue": 1, "queue_offset": 7, "count": 3,
        "log_offset": 0, "stored_at_us": 9, "durable_end": 0,
    },
}  # fmt: skip
#: When the messages of the delayed frame are to be delivered, in ms; the first is past when it is stored.
DELIVERY_TIMES: Final = (1_600_000_000_000, 1_700_000_003_000, 1_700_000_999_950)
FILTERED_OFFSETS: Final = (7, 9, 50)
#: Log offset, store time and count of the frames that the filtered messages were taken from.
FILTERED_SOURCES: Final = ((0, 9, 2), (640, 11, 1))

KEYS: Final = (
    b"", b"\x00", b"a", b"k-1", b"order-17", b"order-0017", "größer".encode(), b"0123456789abcdef",
    b"9b2c7f1e-6d52-4c35-9e0a-3f7a5b1c2d4e", b"\xff" * 24, bytes(range(100)),
)  # fmt: skip

ERRORS: Final = (
    errors.TopicNotFound("orders", "broker-a"),
    errors.QueueNotFound("orders", 9, 4),
    errors.OffsetOutOfRange("orders", "broker-a", 1, 5, 10, 20),
    errors.SystemBusy("256 MiB wait for the disk", 250),
    errors.InvalidBatch("column 'body' has nulls", hint="Send b'' for an empty message."),
    errors.TooLarge("the decompressed batch", 70_000_000, 67_108_864),
    errors.StoreFull("broker-a", 96),
    errors.CorruptFrame(128, "the magic number is 0x00000000, not 0x01465152"),
    message_errors.InvalidMessage(
        "property", "DELAY", "asks for a delayed delivery", hint="Leave it out.", row=7
    ),
    message_errors.InvalidMessage("tag", "A B", "has white space"),
    message_errors.ReservedName("topic", "%RETRY%billing"),
)

UNITS_AT: Final = (4_096, 600)
#: Rows by topic of the batch that the golden log of sinks has decided.
ROWS: Final = {"orders": len(MESSAGES) + 1}
TAGS: Final = ("paid", None, "größer", "")


def batch() -> pa.RecordBatch:
    return from_messages(MESSAGES)


def body_of(name: str) -> bytes:
    if name == "filtered":
        offsets = np.array(FILTERED_OFFSETS, dtype=np.int64)
        return filtered_body(batch(), offsets, np.array(list(FILTERED_SOURCES), dtype=SOURCE))
    if name == "delayed":
        return bytes(encapsulate(with_times(batch(), np.array(DELIVERY_TIMES))))
    if name.startswith(("messages", "staged", "half")):
        return bytes(encapsulate(batch(), "zstd" if name.endswith("zstd") else None))
    return json.dumps({"specimen": name}).encode()


def frame(name: str, body: bytes) -> bytes:
    return b"".join(bytes(part) for part in encode(body=body, **FRAMES[name]))


def unit_bytes() -> bytes:
    return units(*UNITS_AT, hash_column(pa.array(TAGS, pa.string()))).tobytes()


def fill(store: MessageStore) -> None:
    """What the golden log tells: a topic, two sends to it, and a group's progress."""
    answer(partial(store.create_topic, "orders", CreateTopicRequest(2, 2)))
    for queue in (0, 1):
        [sent] = read_stream(write_stream([batch()]))
        batches = [QueueBatch(queue, sent.encapsulated, sent.batch)]
        answer(partial(store.append, "orders", batches))
    progress = CommitOffsetsRequest((GroupOffset("orders", 0, 2),))
    answer(partial(store.consumer_groups.commit_offsets, "billing", progress))


def fill_groups(store: MessageStore) -> None:
    """What the golden log of groups tells: settings, owners, releases, and the group of a Spark query."""
    fill(store)
    groups = store.consumer_groups
    settings = SetGroupRequest(retries_max=3, start=StartRule(StartFrom.TIME, 7))
    answer(partial(groups.set, "billing", settings))
    for member, number in (("a@1", 0), ("b@2", 1)):
        request = ClaimRequest(member, (QueueOfTopic("orders", number),))
        answer(partial(groups.claim, "billing", request, ()))
    commit = MemberCommit("a@1", (ClaimedOffset("orders", 0, 1, 3),), release=True)
    answer(partial(groups.commit_claimed, "billing", commit))
    query = CommitOffsetsRequest((GroupOffset("orders", 1, 1),), kind=GroupKind.SPARK)
    answer(partial(groups.commit_offsets, "query", query))
    for name in ("deleted", "revoked"):
        answer(partial(groups.create, name))
        request = ClaimRequest("a@1", (QueueOfTopic("orders", 0),))
        answer(partial(groups.claim, name, request, ()))
    forced = CommitOffsetsRequest((GroupOffset("orders", 0, 1),), force=True)
    answer(partial(groups.commit_offsets, "revoked", forced))
    answer(partial(groups.delete, "deleted", (), False))


def fill_records(store: MessageStore) -> None:
    """What the golden log of records tells: a topic whose record grew and shrank, and one without."""
    brokers = (store.broker, "broker-b")
    answer(partial(store.create_topic, "orders", CreateTopicRequest(1, 1, brokers=brokers)))
    more = CreateTopicRequest(1, 1, if_absent=True, brokers=(store.broker, "broker-c"))
    answer(partial(store.create_topic, "orders", more))
    answer(partial(store.alter_topic, "orders", AlterTopicRequest(remove_brokers=("broker-b",))))
    answer(partial(store.create_topic, "plain", CreateTopicRequest(1, 1)))


def fill_sinks(store: MessageStore) -> None:
    """What the golden logs of sinks tell: one batch is decided, a next one staged, others are over."""
    sinks = store.sinks
    answer(partial(store.create_topic, "orders", CreateTopicRequest(2, 2)))
    for name in ("etl", "reset", "deleted"):
        answer(partial(sinks.register, name, "broker-a"))
        answer(partial(sinks.begin_run, name, "run-1", "query-1"))
    first = staged(store, 0)
    parts = (Participant("broker-a", (first.log_offset,), first.count), Participant("broker-b", (64,), 1))
    answer(partial(sinks.decide_batch, "etl", 0, CommitBatchRequest("run-1", parts, "query-1", ROWS)))
    wanted = PublishBatchRequest(0, "run-1", (first.log_offset,), first.count)
    answer(partial(sinks.publish, "etl", wanted))
    answer(partial(sinks.settle, "etl", 0, "broker-a"))
    staged(store, 1)
    staged(store, 2)
    answer(partial(sinks.drop, sinks.table.stages[2]))
    answer(partial(sinks.abort_batch, "reset", 0, "run-0"))
    answer(partial(sinks.reset, "reset"))
    answer(partial(sinks.delete, "deleted", False))


def fill_timers(store: MessageStore) -> None:
    """What the golden log of timers tells: of four delayed messages one is delivered and one cancelled."""
    answer(partial(store.create_topic, "orders", CreateTopicRequest(1, 1)))
    # The first is due at once: the commit of the second delivers it.
    times = np.array([5, *(store.now_ms() + delay for delay in (20_000, 10_000, 1_200_000))])
    for at in times:
        batch_of_one = with_times(from_messages([Message(b"due at %d" % at)]), np.array([at]))
        timed = delayed_batches(0, batch_of_one, np.array([at]))
        outcome = answer(partial(store.append, "orders", timed))
    (place,) = outcome.timers
    held = store.timers.find(TimerId(MessageQueue("orders", store.broker, 0), *place))
    answer(partial(store.timers.cancel, held))


def fill_transactions(store: MessageStore) -> None:
    """What the golden log of transactions tells: two are decided, one is checked, and one parked."""
    transactions = store.transactions
    for topic in ("orders", PARKING_TOPIC):
        answer(partial(store.create_topic, topic, CreateTopicRequest(2, 2)))
    for name in ("committed", "rolled-back", "checked", "parked"):
        half = HalfName(name, "orders-tx", 0)
        [sent] = read_stream(write_stream([batch()]))
        batches = [QueueBatch(1, sent.encapsulated, sent.batch)]
        answer(partial(store.append, "orders", batches, stage=half))
    answer(partial(transactions.decide, "committed", "orders-tx", TransactionState.COMMIT))
    answer(partial(transactions.decide, "rolled-back", "orders-tx", TransactionState.ROLLBACK))
    answer(partial(transactions.hand_out, "orders-tx", 1, transactions.find("checked").begun_at_ms + 6_000))
    parked = transactions.find("parked")
    answer(partial(transactions.park, parked, transactions.parked_batches(parked)))


def fill_numbered(store: MessageStore) -> None:
    """What the golden log of numbered sends tells: a slot that went on, one in pieces, and a delay."""
    answer(partial(store.create_topic, "orders", CreateTopicRequest(2, 2)))
    [sent] = read_stream(write_stream([batch()]))
    both = [QueueBatch(queue, sent.encapsulated, sent.batch) for queue in (0, 1)]
    answer(partial(store.append, "orders", both[:1], number=SendNumber(7, 0)))
    answer(partial(store.append, "orders", both[:1], number=SendNumber(7, 1)))
    answer(partial(store.append, "orders", both, number=SendNumber(8, 4), pieces=(2,)))
    at = np.array([store.now_ms() + 20_000])
    timed = delayed_batches(1, with_times(from_messages([Message(b"later")]), at), at)
    answer(partial(store.append, "orders", timed, number=SendNumber(9, 0)))


def fill_leases(store: MessageStore) -> None:
    """What the golden log of leases tells: of three messages one is acknowledged and one has a later time."""
    fill(store)
    driver, group = Driver(store), "receivers"
    begin(driver, group, 2, "orders")
    standing = store.leases.standing(group, ("orders", 1), 10)
    assert standing is not None
    wish = Wish(("orders", 1), standing.topic_number, 0, 3, ((0, 3),))
    taken = take(driver, group, [wish], 60_000, filters={"orders": "tag paid"})
    handles = [each.handle for each in given(store.broker, taken)]
    acknowledge(driver, group, handles[:1])
    change_time(driver, group, handles[2:], 120_000)


def staged(store: MessageStore, number: int) -> Staged:
    [sent] = read_stream(write_stream([batch()]))
    batches = [QueueBatch(number % 2, sent.encapsulated, sent.batch)]
    name = StageName("etl", number, "run-1", "broker-a")
    [made] = answer(lambda done: store.append("orders", batches, done, stage=name)).staged
    return made


def log_of(filled: Callable[[MessageStore], None]) -> bytes:
    """Return the log of a store that was filled so."""
    with tempfile.TemporaryDirectory() as directory:
        store = MessageStore.open(config(Path(directory)), clock=ManualClock())
        filled(store)
        store.close()
        log = (Path(directory) / "commitlog" / f"{0:020d}").read_bytes()
    end = 0
    while end < len(log) and (size := struct.unpack_from("<I", log, end)[0]):
        end += size
    return log[:end]


def write() -> None:
    FILES.mkdir(exist_ok=True)
    for name in FRAMES:
        (FILES / f"{name}.frame").write_bytes(frame(name, body_of(name)))
    for codec in CODECS:
        stream = write_stream([batch(), batch().slice(1)], None if codec == "none" else codec)
        (FILES / f"{codec}.stream").write_bytes(stream)
    hashes = {key.hex(): f"{hash_value(key):#018x}" for key in KEYS}
    (FILES / "key_hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")
    documents = [{"status": error.status, "document": error.document()} for error in ERRORS]
    (FILES / "errors.json").write_text(json.dumps(documents, indent=1, ensure_ascii=False) + "\n")
    (FILES / "units.bin").write_bytes(unit_bytes())
    (FILES / "commitlog").write_bytes(log_of(fill))
    # `commitlog-sinks` stays as it is: it was written before decisions had rows by topic.
    (FILES / "commitlog-sinks-rows").write_bytes(log_of(fill_sinks))
    (FILES / "commitlog-timers").write_bytes(log_of(fill_timers))
    (FILES / "commitlog-transactions").write_bytes(log_of(fill_transactions))
    (FILES / "commitlog-records").write_bytes(log_of(fill_records))
    (FILES / "commitlog-groups").write_bytes(log_of(fill_groups))
    (FILES / "commitlog-leases").write_bytes(log_of(fill_leases))
    (FILES / "commitlog-numbered").write_bytes(log_of(fill_numbered))


if __name__ == "__main__":
    write()
