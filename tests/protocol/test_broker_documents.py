from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq import model
from rocketq.errors import InvalidRequest
from rocketq.model import Int64
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.documents import nameserver as route
from rocketq.protocol.documents import sinks
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset, decode, encode
from tests.protocol.strategies import INT64, TEXT


def documents() -> list[type]:
    """Every document that crosses the wire as JSON: all of calls, route and sinks, and their parts."""
    found = {
        value
        for module in (calls, route, sinks)
        for value in vars(module).values()
        if isinstance(value, type) and (dataclasses.is_dataclass(value) or issubclass(value, msgspec.Struct))
    }
    # What consumers get is made of a document and is none itself.
    return sorted(found - {model.MessageQueue, model.StoredMessage}, key=lambda kind: kind.__name__)


# Once: each registration makes hypothesis forget the strategies that it has built.
st.register_type_strategy(str, TEXT)
st.register_type_strategy(int, INT64)


@pytest.mark.parametrize("kind", documents(), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_document_decodes_to_the_value_it_was_made_of(kind: type, data: st.DataObject) -> None:
    value = data.draw(st.from_type(kind))
    again: Any = decode(encode(value), kind)
    assert again == value


@pytest.mark.parametrize("kind", documents(), ids=lambda kind: kind.__name__)
def test_no_document_takes_an_integer_past_64_bits(kind: type) -> None:
    plain = [
        name
        for name, written in kind.__annotations__.items()
        if written in ("int", "int | None", "tuple[int, ...]")
    ]
    assert plain == []
    [limits] = get_args(Int64)[1:]
    assert (limits.ge, limits.le) == (-(2**63), 2**63 - 1)


WANTED = b'{"topic":"orders","queue":1,"offset":2}'


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"topic":"orders","queue":1}',
        b'{"topic":null,"queue":1,"offset":2}',
        b'{"topic":"orders","queue":"1","offset":2}',
        b'{"topic":"orders","queue":1.5,"offset":2}',
        b'{"topic":"orders","queue":1,"offset":true}',
        b'{"topic":"orders","queue":1,"offset":9223372036854775808}',
        b'{"topic":"orders","queue":1,"offset":-9223372036854775809}',
        b'{"topic":"orders","queue":1,"offset":' + b"9" * 100_000 + b"}",
        b'{"topic":"orders","queue":1,"offset":1e999}',
        b'{"topic":"\xff","queue":1,"offset":2}',
        b'{"topic":"\\ud800","queue":1,"offset":2}',
        b'{"topic":"or' + b"\0" + b'ders","queue":1,"offset":2}',
        WANTED + WANTED,
        WANTED[:-1],
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"topic":' + b"[" * 100_000 + b"]" * 100_000 + b',"queue":1,"offset":2}',
    ],
)
def test_a_document_of_another_form_is_an_invalid_request(document: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(document, GroupOffset, "the offsets")
    assert raised.value.facts["where"] == "the offsets"


def test_deep_nesting_is_refused_where_anything_may_stand() -> None:
    with pytest.raises(InvalidRequest):
        decode(b"[" * 100_000 + b"]" * 100_000, Any)


@given(st.binary(max_size=200))
def test_noise_is_an_invalid_request(noise: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode(noise, CommitOffsetsRequest)


@given(st.data())
def test_a_damaged_document_is_a_value_or_an_invalid_request(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(documents()))
    text = bytearray(encode(data.draw(st.from_type(kind))))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        assert isinstance(decode(bytes(text), kind), kind)


def test_the_error_names_the_field() -> None:
    with pytest.raises(InvalidRequest, match=r"offsets\[0\]\.queue"):
        decode(b'{"offsets":[{"topic":"a","queue":"b","offset":1}]}', CommitOffsetsRequest)
