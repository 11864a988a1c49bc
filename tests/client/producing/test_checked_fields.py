"""What is no message is refused while its caller is there, with what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketq import Closed, InvalidBatch, InvalidMessage, InvalidName, RocketqError, TooLarge
from rocketq.producing.producer import Producer
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallCluster


@pytest.fixture
def producer() -> Iterator[Producer]:
    with (
        SmallCluster(brokers=1) as small,
        PatientClient(small.nameserver) as client,
        client.producer(linger_ms=60_000) as made,
    ):
        yield made


CALLS = ["send", "submit", "send_oneway"]
REFUSED: list[tuple[dict[str, Any], type[RocketqError], str]] = [
    ({"body": None}, InvalidBatch, "has no body"),
    ({"body": 17}, InvalidBatch, "body is a int, which is neither bytes nor text"),
    ({"body": {"a": 1}}, InvalidBatch, "body is a dict"),
    ({"key": 17}, InvalidBatch, "key is a int"),
    ({"key": b"k" * 40_000}, TooLarge, "key"),
    ({"tag": b"paid"}, InvalidBatch, "tag is a bytes, not text"),
    ({"tag": "ü" * 128}, TooLarge, "tag"),
    ({"tag": "a b"}, InvalidMessage, "tag"),
    ({"properties": [("a", "b")]}, InvalidBatch, "properties are a list"),
    ({"properties": {"a": 1}}, InvalidBatch, "the property 'a' has the value 1"),
    ({"properties": {1: "a"}}, InvalidBatch, "the property 1 has the value 'a'"),
    ({"properties": {"TRAN_MSG": "true"}}, InvalidMessage, "TRAN_MSG"),
    ({"ordering_key": 17}, InvalidBatch, "ordering_key is a int"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("given", "kind", "why"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_no_message_is_refused_at_once(
    producer: Producer, call: str, given: dict[str, Any], kind: type[RocketqError], why: str
) -> None:
    fields = {"body": b"x", **given}
    with pytest.raises(kind, match=why) as caught:
        getattr(producer, call)(TOPIC, fields.pop("body"), **fields)
    assert caught.value.hint


@pytest.mark.parametrize("call", CALLS)
def test_an_empty_topic_and_a_closed_producer_are_refused_at_once(producer: Producer, call: str) -> None:
    with pytest.raises(InvalidName):
        getattr(producer, call)("", b"x")
    producer.submit(TOPIC, b"x")
    producer.close()
    with pytest.raises(Closed):
        getattr(producer, call)(TOPIC, b"x")


def test_bytes_of_any_kind_and_text_are_a_body(producer: Producer) -> None:
    futures = [producer.submit(TOPIC, body) for body in (b"x", "x", bytearray(b"x"), memoryview(b"x"))]  # type: ignore[arg-type]
    producer.flush()
    assert [future.result().offset for future in futures] == [0, 1, 2, 3]
