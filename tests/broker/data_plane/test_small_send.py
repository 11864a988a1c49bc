"""One plain message: the short path and the usual way store, answer and refuse the same."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given

from rocketq.model import Message
from rocketq.protocol.documents.broker import OCTET_STREAM
from rocketq.protocol.frame_slices import open_frames
from rocketq.protocol.plain_message import PROPERTY_PREFIX, parameters_of
from rocketq_broker.data_plane.query_parameters import parse
from rocketq_broker.data_plane.sends import small_send
from rocketq_broker.data_plane.sends.send_plain import PLAIN_PARAMETERS, read_message
from tests.broker.conftest import StartBroker
from tests.protocol.strategies import MESSAGES
from tests.support.http_client import ARROW, Answer, Http, stream

PLAIN = {"content-type": OCTET_STREAM}
#: With this header the short path does not take a send.
USUAL = {**PLAIN, "content-encoding": "identity"}

FULL = Message(b"body", key=b"k", tag="größer", properties={"a": "b", "KEYS": "x y"}, born_at_us=17)
GOOD = {
    "plain": Message(b"plain"),
    "empty": Message(b"", key=b""),
    "full": FULL,
    "a key that is not text": Message(b"\xff\x00", key=b"\xff", born_at_us=-1),
    "names of signs": Message(b"x", tag="&=", properties={"": "", "a=b&c+d": "%20 +", "ü.": "\x00"}),
    "the longest tag": Message(b"x", tag="t" * 255),
    "the largest": Message(bytes(1_000)),
}
BAD: dict[str, tuple[bytes, str]] = {
    "too large a body": (bytes(1_001), "?queue=1"),
    "too long a key": (b"x", "?queue=1&key=" + "k" * 32_768),
    "too long a tag": (b"x", "?queue=1&tag=" + "t" * 256),
    "a tag of too many bytes": (b"x", "?queue=1&" + urlencode({"tag": "🚀" * 64})),
    "too many properties": (b"x", "?queue=1&property." + "p" * 20_000 + "=" + "v" * 20_000),
    "a tag that no expression can name": (b"x", "?queue=1&tag=A+B"),
    "an empty tag": (b"x", "?queue=1&tag="),
    "a delay that is no number": (b"x", "?queue=1&property.a=b&property.DELAY=soon"),
    "a refused property": (b"x", "?queue=1&property.a=b&property.TRAN_MSG=true"),
    "no such queue": (b"x", "?queue=4"),
    "two queues": (b"x", "?queue=1,2"),
    "no number": (b"x", "?queue=x"),
    "an unknown parameter": (b"x", "?queue=1&colour=red"),
    "a property given twice": (b"x", "?queue=1&property.a=1&property.a=2"),
    "two keys": (b"x", "?queue=1&key=a&key_base64=YQ=="),
    "bad base64": (b"x", "?queue=1&key_base64=%3F"),
    "text that is not UTF-8": (b"x", "?queue=1&tag=%FF"),
    "a time beyond 64 bits": (b"x", "?queue=1&born_at_us=9223372036854775808"),
    "a number that is none": (b"x", "?queue=1&number=17"),
    "a stage": (b"x", "?queue=1&sink=s&batch=1&run=r&coordinator=c"),
}


def query(message: Message, queue: int | None = None) -> str:
    parameters = parameters_of(message)
    assert parameters is not None
    return "?" + urlencode(parameters | ({} if queue is None else {"queue": str(queue)}))


class Counted:
    """Calls that were taken by the quick way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        real = small_send.SmallSends.take

        def take(sends: small_send.SmallSends, call: Any) -> bool:
            taken = real(sends, call)
            self.taken += taken
            return taken

        monkeypatch.setattr(small_send.SmallSends, "take", take)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def limited(start_broker: StartBroker) -> Http:
    broker = start_broker(auto_create_topics=False, message_bytes_max=1_000)
    broker.create("orders", read_queues=4, write_queues=4)
    return broker


def messages(broker: Http, queue: int) -> list[dict[str, Any]]:
    answer = broker.pull("orders", queue, 0)
    return [row for piece in open_frames(answer.body, 0) for row in piece.batch.to_pylist()]


def told(answer: Answer) -> tuple[int, str | None, Any]:
    return answer.status, answer.headers.get("content-type"), answer.json


@given(MESSAGES)
def test_a_message_is_read_from_its_parameters_as_it_was(message: Message) -> None:
    parameters = parameters_of(message)
    if parameters is None:
        assert message.properties == {}
        return
    sent = urlencode(parameters).encode()
    assert read_message(parse(sent, PLAIN_PARAMETERS, PROPERTY_PREFIX), message.body) == message


def test_both_ways_store_and_answer_the_same(limited: Http, counted: Counted) -> None:
    for at, message in enumerate(GOOD.values()):
        quick = limited.send("orders", message.body, query(message, 1), PLAIN)
        usual = limited.send("orders", message.body, query(message, 2), USUAL)
        assert told(quick)[:2] == told(usual)[:2] == (200, "application/json")
        assert quick.json["appended"] == [{"queue": 1, "offset": at, "count": 1}]
        assert usual.json == quick.json | {"appended": [{"queue": 2, "offset": at, "count": 1}]}
    assert counted.taken == len(GOOD)
    for message in GOOD.values():
        limited.send("orders", stream([message]), "?queue=3")
    assert messages(limited, 1) == messages(limited, 2) == messages(limited, 3)
    assert len(messages(limited, 1)) == len(GOOD)
    found = limited.get("/v1/topics/orders/messages?key=y").json
    while found["lag_bytes"]:
        found = limited.get("/v1/topics/orders/messages?key=y").json
    assert {(each["queue"], each["offset"]) for each in found["messages"]} == {(1, 2), (2, 2), (3, 2)}


@pytest.mark.parametrize(("body", "given_query"), BAD.values(), ids=BAD)
def test_both_ways_refuse_with_the_same_error(
    limited: Http, counted: Counted, body: bytes, given_query: str
) -> None:
    quick = limited.send("orders", body, given_query, PLAIN)
    usual = limited.send("orders", body, given_query, USUAL)
    assert quick.status >= 400
    assert told(quick) == told(usual)
    assert counted.taken == 0
    assert limited.total("orders") == 0


def test_a_limit_that_is_broken_has_the_error_of_the_arrow_form(limited: Http) -> None:
    for message in (Message(bytes(1_001)), Message(b"x", key=b"k" * 32_768), Message(b"x", tag="t" * 256)):
        plain = limited.send("orders", message.body, query(message, 1), PLAIN)
        assert told(plain) == told(limited.send("orders", stream([message]), "?queue=1"))
        assert plain.code == "TOO_LARGE"


def test_the_other_forms_do_not_have_the_parameters_of_a_plain_message(limited: Http) -> None:
    for name in ("key", "tag", "property.a", "born_at_us"):
        assert limited.send("orders", stream([FULL]), f"?queue=1&{name}=1", ARROW).code == "INVALID_REQUEST"


def test_a_send_of_another_form_takes_the_usual_way(limited: Http, counted: Counted) -> None:
    for body, given_query, headers in (
        (b"x", "", PLAIN),
        (stream([FULL]), "?queue=1", ARROW),
        (stream([FULL], [FULL]), "?queue=1", ARROW),
        (b'{"messages": [{"body": "x"}]}', "?queue=1", {"content-type": "application/json"}),
    ):
        assert limited.send("orders", body, given_query, headers).status == 200
    assert counted.taken == 0
    assert limited.total("orders") == 5


def test_a_large_plain_message_takes_the_usual_way(start_broker: StartBroker, counted: Counted) -> None:
    broker = start_broker()
    body = bytes(range(256)) * 1_024
    assert broker.send("orders", body, "?queue=0&key=k", PLAIN).status == 200
    assert counted.taken == 0
    [row] = messages(broker, 0)
    assert (row["body"], row["key"]) == (body, b"k")


def test_messages_without_a_queue_go_to_the_queues_in_turn(limited: Http) -> None:
    answers = [limited.send("orders", b"x", headers=PLAIN).json["appended"][0] for _ in range(4)]
    assert sorted(each["queue"] for each in answers) == [0, 1, 2, 3]


def test_a_topic_that_cannot_be_written_is_left_to_the_usual_way(
    start_broker: StartBroker, counted: Counted
) -> None:
    broker = start_broker(auto_create_topics=True)
    assert broker.send("fresh", b"x", "?queue=0", PLAIN).status == 200
    assert counted.taken == 0
    assert broker.send("fresh", b"x", "?queue=0", PLAIN).status == 200
    assert counted.taken == 1
    kind = {"content-type": "application/json"}
    assert broker.call("PATCH", "/v1/topics/fresh", b'{"perm": 4}', kind).status == 200
    assert broker.send("fresh", b"x", "?queue=0", PLAIN).code == "NO_PERMISSION"
    assert broker.send("fr%2Fesh", b"x", "?queue=0", PLAIN).code == "INVALID_NAME"
    assert broker.send("RMQ_SYS_x", b"x", "?queue=0", PLAIN).code == "RESERVED_NAME"
    assert counted.taken == 1


def test_a_full_or_drained_broker_refuses_single_sends_too(
    start_broker: StartBroker, counted: Counted
) -> None:
    body = bytes(1_025)
    full = start_broker(in_flight_bytes_max=1_024, request_bytes_max=1_024)
    full.create("orders", read_queues=1, write_queues=1)
    assert full.send("orders", body, "?queue=0", PLAIN).status in (413, 429)
    assert counted.taken == 0
    drained = start_broker()
    drained.create("orders", read_queues=1, write_queues=1)
    drained.put("/v1/drain", {"draining": True})
    quick, usual = (drained.send("orders", body, "?queue=0", headers) for headers in (PLAIN, USUAL))
    assert told(quick) == told(usual)
    assert (quick.status, quick.headers["retry-after"]) == (503, usual.headers["retry-after"])


def test_sends_on_the_short_path_are_counted(limited: Http, counted: Counted) -> None:
    for _ in range(3):
        limited.send("orders", b"12345", "?queue=1", PLAIN)
    assert counted.taken == 3
    lines = limited.get("/metrics").body.decode().splitlines()
    values = {
        line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if not line.startswith("#")
    }
    assert values["rocketmq_messages_in_total"] == 3
    assert values["rocketmq_throughput_in_total"] == 15
    assert values["rocketq_in_flight_bytes"] == 0
