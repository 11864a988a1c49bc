"""The JSON form of a send, read strictly."""

from __future__ import annotations

import pytest

from rocketq.errors import InvalidRequest
from rocketq.model import Message
from rocketq_broker.data_plane.sends.send_json import read_document


def test_every_field_has_its_place() -> None:
    body = b"""{"messages": [
        {"body": "t\\u00e4xt", "key": "k-1", "tag": "paid", "properties": {"region": "eu"}, "queue": 2,
         "born_at_us": 5},
        {"body_base64": "AAEC", "key_base64": "/w=="}]}"""
    assert read_document(body) == [
        (Message("täxt".encode(), b"k-1", "paid", {"region": "eu"}, 5), 2),
        (Message(b"\x00\x01\x02", b"\xff"), None),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"null",
        b'{"messages": {}}',
        b'{"messages": [{}]}',
        b'{"messages": [{"body": null}]}',
        b'{"messages": [{"body": 1}]}',
        b'{"messages": [{"body": "a", "body_base64": "YQ=="}]}',
        b'{"messages": [{"body": "a", "key": "k", "key_base64": "YQ=="}]}',
        b'{"messages": [{"body_base64": "YQ"}]}',
        b'{"messages": [{"body_base64": "Y Q=="}]}',
        b'{"messages": [{"body_base64": "\xc3\xa4"}]}',
        b'{"messages": [{"body": "\xff"}]}',
        b'{"messages": [{"body": "\\ud800"}]}',
        b'{"messages": [{"body": "a", "tags": "x"}]}',
        b'{"messages": [{"body": "a", "properties": {"a": 1}}]}',
        b'{"messages": [{"body": "a", "queue": "1"}]}',
        b'{"messages": [{"body": "a", "born_at_us": 9223372036854775808}]}',
        b'{"messages": [], "queue": 1}',
        b'{"messages": [' + b"[" * 100_000,
    ],
)
def test_what_is_not_of_the_form_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_document(body)


def test_the_error_names_the_message() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.body_base64"):
        read_document(b'{"messages": [{"body": "a"}, {"body_base64": "!"}]}')
