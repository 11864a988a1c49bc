"""Send over HTTP: what is accepted, and that whatever is refused leaves nothing behind."""

from __future__ import annotations

import json
import select
import socket
import struct

import pyarrow as pa
import pytest

from rocketq.model import Message
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.frame_slices import open_frames
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, from_messages
from tests.broker.conftest import StartBroker
from tests.support.conditions import wait_until
from tests.support.http_client import ARROW, JSON, Http, numbered, stream


def bodies_of(broker: Http, topic: str, queue: int) -> list[bytes]:
    answer = broker.pull(topic, queue, 0)
    assert answer.status == 200
    return [body for piece in open_frames(answer.body, 0) for body in piece.batch["body"].to_pylist()]


def test_batches_go_to_the_queues_that_are_named(broker: Http) -> None:
    answer = broker.send("orders", stream(numbered(3), numbered(2, 3)), "?queue=2,0")
    assert answer.status == 200
    assert answer.json == {
        "status": "SEND_OK",
        "broker": "broker-0",
        "topic": "orders",
        "appended": [{"queue": 2, "offset": 0, "count": 3}, {"queue": 0, "offset": 0, "count": 2}],
    }
    assert bodies_of(broker, "orders", 2) == [b"message 0", b"message 1", b"message 2"]
    assert bodies_of(broker, "orders", 0) == [b"message 3", b"message 4"]


def test_one_queue_takes_all_batches_in_order(broker: Http) -> None:
    answer = broker.send("orders", stream(numbered(2), numbered(1), numbered(4)), "?queue=1")
    assert [(each["offset"], each["count"]) for each in answer.json["appended"]] == [(0, 2), (2, 1), (3, 4)]


def test_without_a_queue_the_broker_rotates_batch_by_batch(broker: Http) -> None:
    first = broker.send("orders", stream(*[numbered(1)] * 3)).json["appended"]
    second = broker.send("orders", stream(*[numbered(1)] * 3)).json["appended"]
    assert [each["queue"] for each in first + second] == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch_is_stored_as_it_was_sent(broker: Http, codec: str) -> None:
    batch = from_messages([Message(b"x" * 1000)] * 100)
    assert broker.send("orders", stream(batch, codec=codec), "?queue=0").status == 200
    (piece,) = open_frames(broker.pull("orders", 0, 0).body, 0)
    assert piece.batch.equals(batch)
    assert piece.header.body_bytes == encapsulate(batch, codec).size


def test_json_messages_are_answered_one_by_one_in_the_order_sent(broker: Http) -> None:
    answer = broker.send_json(
        "orders",
        {"body": "a", "queue": 1},
        {"body": "b"},
        {"body_base64": "/w==", "queue": 1, "key": "k", "tag": "t", "properties": {"p": "q"}},
        {"body": "d"},
    )
    assert answer.status == 200
    assert answer.json["appended"] == [
        {"queue": 1, "offset": 0, "count": 1},
        {"queue": 0, "offset": 0, "count": 1},
        {"queue": 1, "offset": 1, "count": 1},
        {"queue": 1, "offset": 2, "count": 1},
    ]
    assert bodies_of(broker, "orders", 1) == [b"a", b"\xff", b"d"]


def test_a_large_json_body_is_taken_too(broker: Http) -> None:
    messages = [{"body": f"message {number}"} for number in range(5_000)]
    answer = broker.send_json("orders", *messages, query="?queue=3")
    assert [each["offset"] for each in answer.json["appended"]] == list(range(5_000))
    assert broker.total("orders") == 5_000


def test_a_missing_topic_is_created_by_its_first_send(start_broker: StartBroker) -> None:
    broker = start_broker(default_queues=3)
    assert broker.send("fresh", stream(numbered(2))).status == 200
    config = broker.get("/v1/topics/fresh").json["config"]
    assert (config["read_queues"], config["write_queues"]) == (3, 3)


def test_a_bad_first_send_creates_no_topic(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert broker.send("fresh", b"not arrow").code == "INVALID_BATCH"
    assert broker.send("fresh", stream(numbered(1)), "?queue=9").code == "QUEUE_NOT_FOUND"
    assert broker.get("/v1/topics/fresh").code == "TOPIC_NOT_FOUND"


def test_a_topic_may_have_a_smaller_message_limit_of_its_own(broker: Http) -> None:
    broker.create("small", message_bytes_max=10)
    assert broker.send_json("small", {"body": "0123456789"}).status == 200
    refused = broker.send_json("small", {"body": "x"}, {"body": "0123456789a"})
    assert (refused.status, refused.code) == (413, "TOO_LARGE")
    as_arrow = broker.send("small", stream([Message(b"x"), Message(b"0123456789a")]))
    assert (as_arrow.status, as_arrow.code) == (413, "TOO_LARGE")
    assert broker.total("small") == 1


def other_schema() -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array([b"x"])})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def invalid_utf8_tag() -> bytes:
    good = stream([Message(b"body", tag="TAGTAG")])
    assert good.count(b"TAGTAG") == 1
    return good.replace(b"TAGTAG", b"TAG\xff\xfeG")


def zstd_bomb() -> bytes:
    """Some kilobytes that claim, and hold, 80 MiB."""
    batch = from_messages([Message(bytes(4 << 20))] * 20)
    bomb = stream(batch, codec="zstd")
    assert len(bomb) < 100_000
    return bomb


def null_body() -> bytes:
    nullable = pa.schema([field.with_nullable(True) for field in MESSAGE_SCHEMA])
    columns = [pa.nulls(1, field.type) for field in nullable]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, nullable) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=nullable))
    data: bytes = sink.getvalue().to_pybytes()
    return data


GOOD = stream(numbered(3))

BAD_BODIES = {
    "empty": (b"", "INVALID_BATCH", 400),
    "not Arrow": (b"hello, world", "INVALID_BATCH", 400),
    "truncated in the schema": (GOOD[:100], "INVALID_BATCH", 400),
    "truncated in a batch": (GOOD[: len(GOOD) - 30], "INVALID_BATCH", 400),
    "garbage after the end": (GOOD + b"garbage!", "INVALID_BATCH", 400),
    "another schema": (other_schema(), "INVALID_BATCH", 400),
    "invalid UTF-8 tag": (invalid_utf8_tag(), "INVALID_BATCH", 400),
    "null body": (null_body(), "INVALID_BATCH", 400),
    "no batch": (stream(), "INVALID_BATCH", 400),
    "empty batch": (stream([]), "INVALID_BATCH", 400),
    "a good batch, then a bad one": (
        stream(numbered(1), [Message(b"x", tag="t" * 256)]), "TOO_LARGE", 413,
    ),
    "key over its limit": (stream([Message(b"x", key=b"k" * 32_768)]), "TOO_LARGE", 413),
    "body over its limit": (stream([Message(bytes((4 << 20) + 1))]), "TOO_LARGE", 413),
    "zstd bomb": (zstd_bomb(), "TOO_LARGE", 413),
    "too many batches": (stream(*[numbered(1)] * 1025), "INVALID_BATCH", 400),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_arrow_body_is_refused_and_nothing_is_stored(refusing: Http, name: str) -> None:
    body, code, status = BAD_BODIES[name]
    answer = refusing.send("orders", body, "?queue=0")
    assert (answer.status, answer.code) == (status, code)
    assert set(answer.json) == {"code", "message", "hint", "facts"}
    assert refusing.total("orders") == 0


def test_an_integer_beyond_64_bits_is_refused_as_such(broker: Http) -> None:
    for number in (2**63, 2**64, 10**30):
        for answer in (
            broker.send_json("orders", {"body": "x", "queue": number}),
            broker.send_json("orders", {"body": "x", "born_at_us": number}),
            broker.put("/v1/topics/new", {"read_queues": number}),
            broker.put(
                "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "queue": number, "offset": 0}]}
            ),
            broker.get(f"/v1/messages/broker-0:orders:0:{number}"),
            broker.get(f"/v1/messages/broker-0:orders:{number}:0"),
            broker.pull("orders", number, 0),
            broker.pull("orders", 0, number),
            broker.call("POST", f"/v1/sinks/s/batches/{number}/abort", b'{"run": "r"}', JSON),
        ):
            assert (answer.status, answer.code) == (400, "INVALID_REQUEST"), answer.body


def test_a_key_given_twice_is_refused_by_name_and_nothing_is_done(broker: Http) -> None:
    for answer, key in (
        (broker.send("orders", b'{"messages": [{"body": "a", "body": "b"}]}', headers=JSON), "body"),
        (broker.call("PUT", "/v1/topics/new", b'{"perm": 6, "perm": 4}', JSON), "perm"),
        (broker.call("PATCH", "/v1/topics/orders", b'{"perm": 4, "x": 1, "perm": 6}', JSON), "perm"),
    ):
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
        assert f"'{key}' is given twice" in answer.json["message"]
    assert broker.total("orders") == 0
    assert broker.get("/v1/topics/new").status == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "INVALID_REQUEST"),
        (b"{", "INVALID_REQUEST"),
        (b'{"messages": [{"body": "\xff"}]}', "INVALID_REQUEST"),
        (b'{"messages": [{"body_base64": "*"}]}', "INVALID_REQUEST"),
        (b'{"messages": []}', "INVALID_BATCH"),
        (b'{"messages": [{"body": "a", "queue": 4}]}', "QUEUE_NOT_FOUND"),
        (b'{"messages": [{"body": "a", "queue": -1}]}', "QUEUE_NOT_FOUND"),
        (b'{"messages": [{"body": "a"}, {"body": "b", "queue": 9}]}', "QUEUE_NOT_FOUND"),
        (json.dumps({"messages": [{"body": "a", "tag": "t" * 256}]}).encode(), "TOO_LARGE"),
    ],
)
def test_a_bad_json_body_is_refused_and_nothing_is_stored(refusing: Http, body: bytes, code: str) -> None:
    answer = refusing.send("orders", body, headers=JSON)
    assert answer.code == code
    assert refusing.total("orders") == 0


@pytest.mark.parametrize(
    ("query", "code", "status"),
    [
        ("?queue=4", "QUEUE_NOT_FOUND", 404),
        ("?queue=0,4", "QUEUE_NOT_FOUND", 404),
        ("?queue=99999999999999999999", "INVALID_REQUEST", 400),
        ("?queue=-1", "INVALID_REQUEST", 400),
        ("?queue=one", "INVALID_REQUEST", 400),
        ("?queue=", "INVALID_REQUEST", 400),
        ("?queue=0,1,2", "INVALID_REQUEST", 400),
        ("?queue=0&queue=1", "INVALID_REQUEST", 400),
        ("?que=0", "INVALID_REQUEST", 400),
        ("?queue=%FF", "INVALID_REQUEST", 400),
    ],
)
def test_a_bad_queue_parameter_is_refused(refusing: Http, query: str, code: str, status: int) -> None:
    answer = refusing.send("orders", stream(numbered(1), numbered(1)), query)
    assert (answer.status, answer.code) == (status, code)
    assert refusing.total("orders") == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/vnd.apache.arrow.file"},
        {**ARROW, "content-encoding": "gzip"},
    ],
)
def test_a_content_type_or_encoding_that_is_not_spoken_is_refused(
    refusing: Http, headers: dict[str, str]
) -> None:
    answer = refusing.send("orders", GOOD, headers=headers)
    assert (answer.status, answer.code) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert refusing.total("orders") == 0


def test_a_content_type_may_carry_parameters(broker: Http) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert broker.send("orders", b'{"messages": [{"body": "a"}]}', headers=headers).status == 200


def test_an_unknown_topic_is_refused_when_topics_are_not_created(broker: Http) -> None:
    answer = broker.send("unknown", GOOD)
    assert (answer.status, answer.code) == (404, "TOPIC_NOT_FOUND")
    assert broker.get("/v1/topics/unknown").status == 404


@pytest.mark.parametrize("topic", ["..%2F..%2Fx", "%2e%2e%2fx", "a%20b", "a.b", "x" * 128, "%00", "%C3%A4"])
def test_an_illegal_topic_name_is_refused_and_touches_no_directory(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory, topic: str
) -> None:
    data_dir = tmp_path_factory.mktemp("data") / "deep" / "down"
    broker = start_broker(data_dir=data_dir)
    before = sorted(data_dir.parent.parent.rglob("*"))
    answer = broker.send(topic, GOOD)
    assert (answer.status, answer.code) == (400, "INVALID_NAME")
    assert broker.put(f"/v1/topics/{topic}", {}).code == "INVALID_NAME"
    assert sorted(data_dir.parent.parent.rglob("*")) == before


def test_a_path_that_climbs_is_no_route(broker: Http) -> None:
    answer = broker.call("POST", "/v1/topics/../../x/messages", GOOD, ARROW)
    assert (answer.status, answer.code) == (404, "NOT_FOUND")


def test_a_topic_name_may_hold_percent_signs(broker: Http) -> None:
    broker.create("100%25sure%7Cnot")
    assert broker.send("100%25sure%7Cnot", GOOD).status == 200
    assert broker.get("/v1/topics/100%25sure%7Cnot").json["config"]["name"] == "100%sure|not"


def test_a_request_over_the_limit_is_refused_by_its_announced_size(start_broker: StartBroker) -> None:
    broker = start_broker(request_bytes_max=10_000)
    answer = broker.send("orders", bytes(10_001))
    assert (answer.status, answer.code) == (413, "TOO_LARGE")


def test_a_request_over_the_limit_is_refused_also_when_it_comes_in_pieces(start_broker: StartBroker) -> None:
    broker = start_broker(request_bytes_max=10_000)
    pieces = iter([bytes(6_000)] * 2)
    answer = broker.call("POST", "/v1/topics/orders/messages", pieces, ARROW)
    assert (answer.status, answer.code) == (413, "TOO_LARGE")


def test_a_good_request_may_come_in_pieces(broker: Http) -> None:
    pieces = (GOOD[at : at + 7] for at in range(0, len(GOOD), 7))
    assert broker.call("POST", "/v1/topics/orders/messages", pieces, ARROW).status == 200
    assert broker.total("orders") == 3


def test_wrong_methods_are_refused(broker: Http) -> None:
    for method, path in (
        ("PATCH", "/v1/topics/orders/messages"),
        ("PUT", "/v1/topics/orders/messages"),
        ("POST", "/v1/topics/orders/queues/0/messages?offset=0"),
        ("DELETE", "/v1/topics/orders/offsets"),
        ("POST", "/v1/topics/orders"),
    ):
        answer = broker.call(method, path, b"", ARROW)
        assert answer.status == 405, (method, path)
        assert set(answer.json) == {"code", "message", "hint", "facts"}


def test_bytes_in_flight_over_the_limit_get_system_busy(start_broker: StartBroker) -> None:
    broker = start_broker(request_bytes_max=1 << 20, in_flight_bytes_max=1 << 20)
    broker.create("orders")
    with socket.create_connection((broker.host, broker.port), timeout=60) as slow:
        slow.sendall(
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048576\r\n"
            b"content-type: application/vnd.apache.arrow.stream\r\nexpect: 100-continue\r\n\r\n"
        )
        # The broker asks for the body: from now on its bytes count.
        assert slow.recv(100).startswith(b"HTTP/1.1 100")
        busy = broker.send("orders", GOOD)
        assert (busy.status, busy.code) == (429, "SYSTEM_BUSY")
        assert int(busy.header("retry-after")) >= 1
    assert broker.total("orders") == 0


def begun(broker: Http, head: bytes, body: bytes) -> socket.socket:
    """Begin a send and have the broker take what there is of it; it is not ended."""
    client = socket.create_connection((broker.host, broker.port), timeout=60)
    client.sendall(
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
        b"content-type: application/vnd.apache.arrow.stream\r\n" + head + b"\r\n"
    )
    # The broker has decided to take it.
    assert client.recv(100).startswith(b"HTTP/1.1 100")
    client.sendall(body)
    return client


def in_flight(broker: Http) -> int:
    lines = broker.get("/metrics").body.decode().splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("rocketq_in_flight_bytes"))))


def test_bodies_without_a_length_count_as_they_come(start_broker: StartBroker) -> None:
    broker = start_broker(request_bytes_max=1 << 20, in_flight_bytes_max=4 << 20)
    broker.create("orders")
    chunk = b"%x\r\n%b\r\n" % (10_000, bytes(10_000))
    slow = [begun(broker, b"transfer-encoding: chunked\r\n", chunk) for _ in range(16)]
    wait_until(lambda: in_flight(broker) >= 160_000)
    assert in_flight(broker) == 160_000, "not sixteen times what a body may have"
    assert broker.send("orders", GOOD).status == 200
    for client in slow:
        client.close()
    wait_until(lambda: not in_flight(broker))


def test_bodies_without_a_length_leave_room_for_those_that_have_one(start_broker: StartBroker) -> None:
    broker = start_broker(request_bytes_max=1 << 20, in_flight_bytes_max=2 << 20)
    broker.create("orders")
    chunk = b"%x\r\n%b\r\n" % (400_000, bytes(400_000))
    slow = [begun(broker, b"transfer-encoding: chunked\r\n", chunk) for _ in range(4)]
    # Half of the budget is theirs; whoever comes when it is used up is told so.
    refused = [client for client in slow if select.select([client], [], [], 0)[0]]
    while len(refused) < 2:
        refused = select.select(slow, [], [], 30)[0]
    assert all(client.recv(100).startswith(b"HTTP/1.1 429") for client in refused)
    assert in_flight(broker) <= 1 << 20
    assert broker.send("orders", GOOD).status == 200
    assert broker.send("orders", stream([Message(bytes(900_000))])).status == 200
    for client in slow:
        client.close()


def test_large_bodies_leave_room_for_small_ones(start_broker: StartBroker) -> None:
    broker = start_broker(request_bytes_max=1 << 20, in_flight_bytes_max=4 << 20)
    broker.create("orders")
    slow = [begun(broker, b"content-length: 1048576\r\n", b"") for _ in range(3)]
    large = broker.send("orders", stream([Message(bytes(900_000))]))
    assert (large.status, large.code) == (429, "SYSTEM_BUSY")
    assert broker.send("orders", GOOD).status == 200
    assert broker.send("orders", GOOD, "?queue=0").status == 200
    assert broker.send_json("orders", {"body": "x"}).status == 200
    for client in slow:
        client.close()


def test_a_queue_that_may_not_be_written_refuses(broker: Http) -> None:
    broker.create("read-only", perm=4)
    answer = broker.send("read-only", GOOD)
    assert (answer.status, answer.code) == (403, "NO_PERMISSION")


def test_the_write_queues_bound_the_queue_not_the_read_queues(broker: Http) -> None:
    broker.create("shrinking", read_queues=4, write_queues=2)
    assert broker.send("shrinking", GOOD, "?queue=2").code == "QUEUE_NOT_FOUND"
    queues = broker.send("shrinking", stream(*[numbered(1)] * 4)).json["appended"]
    assert [each["queue"] for each in queues] == [0, 1, 0, 1]


def test_a_batch_that_lies_about_its_buffers_is_refused(broker: Http) -> None:
    """A zstd buffer that claims a size it does not have must not be believed."""
    data = bytearray(stream([Message(b"x" * 10_000)] * 10, codec="zstd"))
    claimed = struct.pack("<q", 100_000)
    at = data.index(claimed)
    data[at : at + 8] = struct.pack("<q", 50_000)
    answer = broker.send("orders", bytes(data))
    assert (answer.status, answer.code) == (400, "INVALID_BATCH")
    assert calls.JSON in answer.header("content-type")
