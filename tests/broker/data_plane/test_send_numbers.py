"""Numbered sends over HTTP, in each form and on both ways."""

from __future__ import annotations

from rocketq.model import Message
from rocketq.protocol.documents.broker import OCTET_STREAM
from tests.support.http_client import Http, stream

PLAIN = {"content-type": OCTET_STREAM}
#: With this header the short way does not take a send.
USUAL = {**PLAIN, "content-encoding": "identity"}


def test_a_plain_message_that_comes_again_has_the_first_answer_on_both_ways(broker: Http) -> None:
    for number, ways in enumerate([(PLAIN, PLAIN), (PLAIN, USUAL), (USUAL, PLAIN), (USUAL, USUAL)]):
        first = broker.send("orders", b"x", f"?queue=0&number=5-{number}", ways[0])
        again = broker.send("orders", b"x", f"?queue=3&number=5-{number}", ways[1])
        assert (first.status, again.status) == (200, 200)
        assert again.json == first.json
        assert again.json["appended"] == [{"queue": 0, "offset": number, "count": 1}]
    assert broker.total("orders") == 4


def test_a_stream_that_comes_again_has_the_first_answer(broker: Http) -> None:
    body = stream([Message(b"a"), Message(b"b")], [Message(b"c")])
    first = broker.send("orders", body, "?queue=0,1&number=5-1")
    assert broker.send("orders", body, "?queue=0,1&number=5-1").json == first.json
    assert broker.total("orders") == 3


def test_a_send_that_was_given_up_is_refused(broker: Http) -> None:
    assert broker.send("orders", b"x", "?queue=0&number=5-2", PLAIN).status == 200
    late = broker.send("orders", b"y", "?queue=0&number=5-1", PLAIN)
    assert (late.status, late.code) == (409, "SEND_OUTDATED")
    assert late.json["facts"] == {"slot": 5, "sequence": 1, "last": 2}
    other = broker.send("orders", stream([Message(b"a"), Message(b"b")]), "?queue=0&number=5-2")
    assert (other.status, other.code) == (409, "SEND_NUMBER_REUSED")
    assert broker.total("orders") == 1


def test_a_number_where_there_can_be_none_is_refused(broker: Http) -> None:
    document = broker.send_json("orders", {"body": "x"}, query="?number=5-1")
    half = broker.send("orders", b"x", "?queue=0&number=5-1&transaction=t&group=g&part=0", PLAIN)
    none = broker.send("orders", b"x", "?queue=0&number=five", PLAIN)
    assert [(each.status, each.code) for each in (document, half, none)] == [(400, "INVALID_REQUEST")] * 3
    assert broker.total("orders") == 0


def test_sends_that_come_again_are_counted(broker: Http) -> None:
    for _ in range(3):
        broker.send("orders", b"x", "?queue=0&number=5-1", PLAIN)
    metrics = broker.get("/metrics").body.decode()
    assert "rocketq_repeated_sends_total 2.0" in metrics
    assert "rocketq_send_slots 1.0" in metrics
