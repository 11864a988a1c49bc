"""Documents are read strictly, and by decoders that exist before the first document comes."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.errors import InvalidRequest
from rocketq.protocol.documents.broker import GroupOffset
from rocketq.protocol.json_codec import decode, decode_request
from tests.protocol.first_decode import KINDS

Document = dict[str, Any]


def first_decodes(processes: int) -> list[int]:
    """Run that many processes, two side by side; return their exit codes."""

    def run(_: int) -> int:
        command = [sys.executable, "-m", "tests.protocol.first_decode"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode or int(int(done.stdout) != len(KINDS))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(processes)))


def test_threads_that_decode_for_the_first_time_together_do_not_crash() -> None:
    # Of processes that build a decoder at its first use, one in three dies: all 16 live once in a thousand.
    assert first_decodes(16) == [0] * 16


@pytest.mark.slow
def test_no_process_of_three_hundred_crashes_at_its_first_decode() -> None:
    assert first_decodes(300) == [0] * 300


def test_every_document_of_the_protocol_has_its_decoder_from_the_start() -> None:
    assert len(KINDS) > 40
    for kind in KINDS:
        with pytest.raises(InvalidRequest, match=kind.__name__):
            decode(b"null", kind)


def test_a_type_that_was_not_prepared_is_refused_not_prepared_late() -> None:
    @dataclass
    class Late:
        value: str

    with pytest.raises(TypeError, match="prepare_documents"):
        decode(b"{}", Late)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"topic": "a", "queue": 0, "offset": 1, "offset": 2}', "offset"),
        (b'{"topic": "a", "queue": 0, "offset": 1, "x": {"y": 1, "z": 2, "\\u0079": 3}}', "y"),
        (b'{"topic": "a", "queue": 0, "offset": 1, "x": [1, [{"deep": 1, "deep": 1}]]}', "deep"),
    ],
)
def test_a_key_that_an_object_has_twice_is_refused_by_name(body: bytes, key: str) -> None:
    assert decode(body, GroupOffset).topic == "a"
    with pytest.raises(InvalidRequest, match=f"key '{key}' is given twice"):
        decode_request(body, GroupOffset)


#: Python's own parser goes deeper from 3.13 on.
TOO_DEEP: Final = 5_000 if sys.version_info < (3, 13) else 500_000


@pytest.mark.parametrize("depth", [500, 5_000, 500_000])
def test_a_request_nested_too_deeply_is_refused_not_a_crash(depth: int) -> None:
    body = b'{"x": ' + b"[" * depth + b"]" * depth + b"}"
    try:
        decode_request(body, Document)
        is_refused = False
    except InvalidRequest:
        is_refused = True
    assert is_refused == (depth >= TOO_DEEP)


def test_a_number_of_very_many_digits_does_no_harm() -> None:
    body = b'{"topic": "a", "queue": 0, "offset": 1, "x": %b}' % (b"9" * 10_000)
    assert decode_request(body, GroupOffset).offset == 1


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_a_document_without_a_doubled_key_is_read_as_it_was_written(document: Document) -> None:
    assert decode_request(json.dumps(document).encode(), Document) == document
