"""Pull over HTTP: its three forms, its refusals, and calls that are held."""

from __future__ import annotations

import resource
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pyarrow as pa
import pytest

from rocketq.model import Message
from rocketq.protocol.documents.broker import ARROW_STREAM, FRAMES, JSON
from rocketq.protocol.frame_slices import open_frames
from tests.broker.conftest import StartBroker
from tests.support.conditions import wait_until
from tests.support.http_client import JSON as JSON_TYPE
from tests.support.http_client import Answer, Http, numbered, stream

HELD_REQUEST = (
    b"GET /v1/topics/orders/queues/%d/messages?offset=0&wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n"
)


def fill(broker: Http, *sizes: int, queue: int = 0) -> None:
    """Send one batch of each size, numbered through."""
    first = 0
    for size in sizes:
        # One request each, so that every batch is a frame of its own whatever is merged in a group.
        assert broker.send("orders", stream(numbered(size, first)), f"?queue={queue}").status == 200
        first += size


def held_calls(broker: Http) -> int:
    for line in broker.get("/metrics").body.decode().splitlines():
        if line.startswith("rocketq_held_calls "):
            return int(float(line.split()[1]))
    raise AssertionError("the metric is missing")


def wait_until_held(broker: Http, count: int) -> None:
    """Ask the broker until it says that so many calls are held."""
    wait_until(lambda: held_calls(broker) == count)


def test_frames_come_whole_and_say_where_to_go_on(broker: Http) -> None:
    fill(broker, 3, 4)
    answer = broker.pull("orders", 0, 1)
    assert answer.status == 200
    assert answer.header("content-type") == FRAMES
    assert answer.header("x-rocketq-status") == "FOUND"
    assert answer.header("x-rocketq-next-offset") == "7"
    assert answer.header("x-rocketq-min-offset") == "0"
    assert answer.header("x-rocketq-max-offset") == "7"
    assert answer.header("x-rocketq-suggested-broker-id") == "0"
    incarnation = broker.get("/v1/topics/orders").json["config"]["incarnation"]
    assert answer.header("x-rocketq-incarnation") == incarnation
    pieces = open_frames(answer.body, 1)
    assert pieces[0].header.queue_offset == 0
    assert [body for piece in pieces for body in piece.batch["body"].to_pylist()] == [
        b"message %d" % number for number in range(1, 7)
    ]


def test_all_three_forms_have_the_same_messages(broker: Http) -> None:
    messages = [Message(b"m%d" % n, b"k", "tag", {"a": str(n)}, 1_000_000 + n) for n in range(5)]
    broker.send("orders", stream(messages[:2]), "?queue=0")
    broker.send("orders", stream(messages[2:], codec="zstd"), "?queue=0")
    frames = broker.pull("orders", 0, 1, FRAMES)
    arrow = broker.pull("orders", 0, 1, ARROW_STREAM, max_messages=3)
    text = broker.pull("orders", 0, 1, JSON, max_messages=3)
    pieces = open_frames(frames.body, 1, 4)
    table = pa.ipc.open_stream(arrow.body).read_all()
    expected = pa.Table.from_batches([piece.batch for piece in pieces])
    assert table.select(expected.column_names).to_pylist() == expected.to_pylist()
    assert table["offset"].to_pylist() == [1, 2, 3]
    assert table["queue"].to_pylist() == [0, 0, 0]
    stored = [piece.header.stored_at_us for piece in pieces for _ in range(piece.batch.num_rows)]
    assert table["stored_at"].cast(pa.int64()).to_pylist() == stored
    document = text.json
    assert [each["body"] for each in document["messages"]] == ["m1", "m2", "m3"]
    assert [each["stored_at_us"] for each in document["messages"]] == stored
    assert document["status"] == "FOUND"
    assert document["next_offset"] == 4
    for answer in (arrow, text):
        assert answer.header("x-rocketq-next-offset") == "4"
        assert answer.header("x-rocketq-max-offset") == "5"


def test_an_answer_stops_after_the_frame_that_reaches_a_limit(broker: Http) -> None:
    fill(broker, 10, 10, 10)
    assert broker.pull("orders", 0, 0, max_messages=11).header("x-rocketq-next-offset") == "20"
    assert broker.pull("orders", 0, 0, max_bytes=1).header("x-rocketq-next-offset") == "10"


def test_the_end_of_a_queue_is_no_error(broker: Http) -> None:
    fill(broker, 2)
    answer = broker.pull("orders", 0, 2)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("x-rocketq-status") == "NO_NEW_MSG"
    assert answer.header("x-rocketq-next-offset") == "2"
    assert broker.pull("orders", 0, 2, JSON).json["messages"] == []
    assert pa.ipc.open_stream(broker.pull("orders", 0, 2, ARROW_STREAM).body).read_all().num_rows == 0


@pytest.mark.parametrize(("offset", "next_offset"), [(3, "2"), (9_000_000_000, "2"), (-1, "0")])
def test_an_illegal_offset_says_where_to_go_on(broker: Http, offset: int, next_offset: str) -> None:
    fill(broker, 2)
    answer = broker.pull("orders", 0, offset, wait_ms=60_000)
    assert (answer.status, answer.code) == (416, "OFFSET_OUT_OF_RANGE")
    assert answer.header("x-rocketq-status") == "OFFSET_ILLEGAL"
    assert answer.header("x-rocketq-next-offset") == next_offset
    assert answer.header("x-rocketq-max-offset") == "2"
    assert answer.header("x-rocketq-incarnation") != ""
    assert answer.json["facts"]["requested"] == offset


@pytest.mark.parametrize(
    ("path", "code", "status"),
    [
        ("/v1/topics/unknown/queues/0/messages?offset=0", "TOPIC_NOT_FOUND", 404),
        ("/v1/topics/..%2F..%2Fx/queues/0/messages?offset=0", "INVALID_NAME", 400),
        ("/v1/topics/orders/queues/4/messages?offset=0", "QUEUE_NOT_FOUND", 404),
        ("/v1/topics/orders/queues/x/messages?offset=0", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/-1/messages?offset=0", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=1.5", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=0&offset=1", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=0&max_bytes=0", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=0&max_bytes=67108865", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=0&wait_ms=60001", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=0&wait=1", "INVALID_REQUEST", 400),
        ("/v1/topics/orders/queues/0/messages?offset=0&group=a.b", "INVALID_NAME", 400),
    ],
)
def test_a_pull_that_makes_no_sense_is_refused(refusing: Http, path: str, code: str, status: int) -> None:
    answer = refusing.get(path)
    assert (answer.status, answer.code) == (status, code)


def test_the_accept_header_chooses_the_form(broker: Http) -> None:
    fill(broker, 1)
    assert broker.pull("orders", 0, 0, "*/*").header("content-type") == FRAMES
    assert broker.pull("orders", 0, 0, "text/html, application/json;q=0.9").header("content-type") == JSON
    refused = broker.pull("orders", 0, 0, "text/html")
    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")


def test_a_topic_that_may_not_be_read_refuses(broker: Http) -> None:
    broker.create("write-only", perm=2)
    assert broker.send("write-only", stream(numbered(1)), "?queue=0").status == 200
    answer = broker.pull("write-only", 0, 0)
    assert (answer.status, answer.code) == (403, "NO_PERMISSION")


def test_many_large_frames_come_in_one_answer(broker: Http) -> None:
    for _ in range(3):
        broker.send("orders", stream([Message(bytes(1 << 20))]), "?queue=0")
        broker.send("orders", stream([Message(b"between")]), "?queue=1")
    answer = broker.pull("orders", 0, 0, max_bytes=8 << 20)
    assert [piece.batch.num_rows for piece in open_frames(answer.body, 0)] == [1, 1, 1]
    assert answer.header("x-rocketq-next-offset") == "3"


# --- held calls ------------------------------------------------------------------------


def start_pull(pool: ThreadPoolExecutor, broker: Http, queue: int, wait_ms: int = 60_000) -> Future[Answer]:
    return pool.submit(broker.pull, "orders", queue, 0, wait_ms=wait_ms)


def test_a_held_pull_is_answered_by_a_message_in_its_own_queue_only(broker: Http) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = [start_pull(pool, broker, queue) for queue in (0, 1)]
        wait_until_held(broker, 2)
        fill(broker, 1, queue=1)
        answer = waiting[1].result(60)
        assert answer.header("x-rocketq-status") == "FOUND"
        assert len(open_frames(answer.body, 0)) == 1
        assert held_calls(broker) == 1
        assert not waiting[0].done()
        fill(broker, 1, queue=0)
        assert waiting[0].result(60).header("x-rocketq-next-offset") == "1"


def test_a_held_pull_answers_that_nothing_came_when_its_time_is_up(broker: Http) -> None:
    answer = broker.pull("orders", 0, 0, wait_ms=30)
    assert answer.status == 200
    assert answer.header("x-rocketq-status") == "NO_NEW_MSG"
    assert held_calls(broker) == 0


def test_a_client_that_hangs_up_gives_its_place_back(broker: Http) -> None:
    with socket.create_connection((broker.host, broker.port)) as client:
        client.sendall(HELD_REQUEST % 0)
        wait_until_held(broker, 1)
    wait_until_held(broker, 0)


def test_slow_readers_cannot_make_the_broker_hold_more_than_allowed(start_broker: StartBroker) -> None:
    broker = start_broker(outgoing_bytes_max=16 << 20)
    broker.create("orders")
    for _ in range(16):
        assert broker.send("orders", stream([Message(bytes(3 << 20))]), "?queue=0").status == 200
    path = b"/v1/topics/orders/queues/0/messages?offset=0&max_bytes=50000000"
    with socket.create_connection((broker.host, broker.port)) as slow:
        slow.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        busy = broker.pull("orders", 0, 0)
        assert (busy.status, busy.code) == (429, "SYSTEM_BUSY")
    while (answer := broker.pull("orders", 0, 0)).status != 200:
        assert answer.code == "SYSTEM_BUSY"
    assert len(open_frames(answer.body, 0)) == 1


def test_a_held_pull_learns_that_its_topic_was_deleted(broker: Http) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = start_pull(pool, broker, 0)
        wait_until_held(broker, 1)
        assert broker.call("DELETE", "/v1/topics/orders").status == 200
        assert waiting.result(60).code == "TOPIC_NOT_FOUND"


def test_a_held_pull_learns_that_its_topic_may_no_longer_be_read(broker: Http) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = start_pull(pool, broker, 0)
        wait_until_held(broker, 1)
        assert broker.call("PATCH", "/v1/topics/orders", b'{"perm": 2}', JSON_TYPE).status == 200
        assert waiting.result(60).code == "NO_PERMISSION"


def test_held_calls_over_the_limit_get_system_busy(start_broker: StartBroker) -> None:
    broker = start_broker(held_calls_max=1)
    broker.create("orders")
    with ThreadPoolExecutor(1) as pool:
        waiting = start_pull(pool, broker, 0)
        wait_until_held(broker, 1)
        busy = broker.pull("orders", 1, 0, wait_ms=60_000)
        assert (busy.status, busy.code) == (429, "SYSTEM_BUSY")
        assert broker.pull("orders", 1, 0).status == 200
        fill(broker, 1)
        assert waiting.result(60).status == 200


def test_thousands_of_held_pulls_are_answered_by_a_message_in_their_queue(broker: Http) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(2_000, (soft - 200) // 3)
    clients = [socket.create_connection((broker.host, broker.port), timeout=60) for _ in range(count)]
    try:
        for number, client in enumerate(clients):
            client.sendall(HELD_REQUEST % (number % 4))
        wait_until_held(broker, count)
        fill(broker, 1, queue=2)
        for client in clients[2::4]:
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        wait_until_held(broker, count - len(clients[2::4]))
        for queue in (0, 1, 3):
            fill(broker, 1, queue=queue)
        for number, client in enumerate(clients):
            if number % 4 != 2:
                assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert held_calls(broker) == 0
    finally:
        for client in clients:
            client.close()


def test_no_message_is_missed_between_a_look_and_a_hold(broker: Http) -> None:
    """A consumer that always waits, and a producer that always sends, never stall each other."""
    rounds = 200
    ready = threading.Event()

    def consume() -> list[int]:
        seen: list[int] = []
        offset = 0
        ready.set()
        while offset < rounds:
            answer = broker.pull("orders", 0, offset, wait_ms=60_000)
            assert answer.header("x-rocketq-status") == "FOUND"
            offset = int(answer.header("x-rocketq-next-offset"))
            seen.append(offset)
        return seen

    with ThreadPoolExecutor(1) as pool:
        consuming = pool.submit(consume)
        ready.wait()
        fill(broker, *[1] * rounds)
        wait([consuming], 60)
        assert consuming.result(0)[-1] == rounds


# --- offsets -----------------------------------------------------------------------------


def test_offsets_come_for_all_queues_at_once(broker: Http) -> None:
    fill(broker, 3, queue=1)
    document = broker.get("/v1/topics/orders/offsets").json
    assert document["total"] == 3
    assert document["queues"] == [{"min": 0, "max": max_} for max_ in (0, 3, 0, 0)]


def test_a_call_for_more_than_a_total_is_held_until_any_queue_grows(broker: Http) -> None:
    fill(broker, 2, queue=0)
    path = "/v1/topics/orders/offsets?after_total=2&wait_ms=60000"
    assert broker.get("/v1/topics/orders/offsets?after_total=1&wait_ms=60000").json["total"] == 2
    assert broker.get("/v1/topics/orders/offsets?after_total=2&wait_ms=20").json["total"] == 2
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.get, path)
        wait_until_held(broker, 1)
        fill(broker, 1, queue=3)
        assert waiting.result(60).json["total"] == 3


def test_offsets_at_a_time_are_those_of_the_store(broker: Http) -> None:
    fill(broker, 2, 3)
    pieces = open_frames(broker.pull("orders", 0, 0).body, 0)
    second = pieces[1].header.stored_at_us
    assert broker.get(f"/v1/topics/orders/offsets?at={second + 1}").json["offsets"] == [5, 0, 0, 0]
    assert broker.get(f"/v1/topics/orders/offsets?at={second}&boundary=upper").json["offsets"][0] == 4
    assert broker.get("/v1/topics/orders/offsets?at=0").json["offsets"] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "query", ["wait_ms=5", "boundary=lower", "at=1&after_total=1", "at=now", "at=1&boundary=left", "x=1"]
)
def test_offsets_asked_for_in_a_way_that_means_nothing_are_refused(broker: Http, query: str) -> None:
    assert broker.get(f"/v1/topics/orders/offsets?{query}").code == "INVALID_REQUEST"


def test_offsets_of_no_topic_are_refused(broker: Http) -> None:
    assert broker.get("/v1/topics/unknown/offsets").code == "TOPIC_NOT_FOUND"
    assert broker.get("/v1/topics/a.b/offsets").code == "INVALID_NAME"
