"""Whatever a stranger sends is answered from the error tree, and never damages what is stored."""

from __future__ import annotations

import http.client
import random
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq.model import Message
from rocketq.protocol.documents.broker import ARROW_STREAM, JSON
from rocketq.protocol.frame_slices import open_frames
from tests.broker.conftest import StartBroker
from tests.support.examples import examples
from tests.support.http_client import ARROW, Http, stream

MESSAGES = [
    Message(b"body %d" % n, b"key", "tag", {"name": "value", "other": str(n)}, 1_000_000 + n)
    for n in range(20)
]
SEEDS = [
    stream(MESSAGES),
    stream(MESSAGES[:1], MESSAGES[1:]),
    stream(MESSAGES, codec="zstd"),
    stream(MESSAGES, codec="lz4"),
]
HYPOTHESIS = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

#: Queries out of the pieces that mean something, in every combination.
NAMES = st.sampled_from(
    ["offset", "max_bytes", "max_messages", "wait_ms", "group", "tag", "sql", "queue", "", "%"]
)
VALUES = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["0", "1", "", "-", "1e9", "%00", "%FF", "a=b", "0x10", "٣", "tag", "a > 1", "NOT", "'"]),
    st.text(max_size=8),
)
QUERIES = st.lists(st.tuples(NAMES, VALUES), max_size=4).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs).encode("utf-8", "surrogatepass")
)


@pytest.fixture
def target(start_broker: StartBroker) -> Iterator[Http]:
    """One broker for all examples of a test."""
    broker = start_broker(auto_create_topics=False)
    broker.create("orders")
    yield broker
    assert broker.get("/readyz").status == 200


@given(seed=st.integers(0, 2**32), which=st.integers(0, len(SEEDS) - 1), edits=st.integers(1, 6))
@HYPOTHESIS
def test_a_damaged_batch_is_refused_or_stored_whole_and_readable(
    target: Http, seed: int, which: int, edits: int
) -> None:
    rng = random.Random(seed)
    body = bytearray(SEEDS[which])
    for _ in range(edits):
        at = rng.randrange(len(body))
        match rng.randrange(4):
            case 0:
                body[at] = rng.randrange(256)
            case 1:
                del body[at : at + rng.randrange(1, 64)]
            case 2:
                body[at:at] = rng.randbytes(rng.randrange(1, 64))
            case 3:
                body[at : at + 8] = rng.choice([bytes(8), b"\xff" * 8, b"\xff" * 7 + b"\x7f"])
    before = target.total("orders")
    answer = target.send("orders", bytes(body), "?queue=0")
    if answer.status != 200:
        assert answer.status in (400, 413), answer.body
        assert target.total("orders") == before
        return
    stored = sum(each["count"] for each in answer.json["appended"])
    assert target.total("orders") == before + stored
    offset = answer.json["appended"][0]["offset"]
    pieces = open_frames(target.pull("orders", 0, offset).body, offset)
    assert sum(piece.batch.num_rows for piece in pieces) == stored
    for form in (JSON, ARROW_STREAM):
        assert target.pull("orders", 0, offset, form).status == 200


@given(
    body=st.one_of(
        st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "ignore"))
    )
)
@HYPOTHESIS
def test_any_bytes_as_a_body_are_refused(target: Http, body: bytes) -> None:
    for headers in (ARROW, {"content-type": JSON}):
        answer = target.send("orders", body, headers=headers)
        assert answer.status in (400, 413), answer.body


@given(query=QUERIES)
@HYPOTHESIS
def test_any_query_is_answered_from_the_error_tree(target: Http, query: bytes) -> None:
    for path in (
        b"/v1/topics/orders/queues/0/messages",
        b"/v1/topics/orders/offsets",
        b"/v1/topics/orders/messages",
        b"/v1/groups/g/offsets",
    ):
        connection = http.client.HTTPConnection(target.host, target.port, timeout=60)
        escaped = bytes(c for c in query if 0x20 < c < 0x7F and c not in b"#")
        connection.request("GET", (path + b"?" + escaped).decode("ascii"))
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status in (200, 400, 404, 416), (response.status, body)


@given(name=st.text(min_size=1, max_size=12))
@HYPOTHESIS
def test_any_name_is_taken_or_refused_but_never_a_path(target: Http, name: str) -> None:
    escaped = quote(name.encode("utf-8", "replace"), safe="")
    for path in (f"/v1/topics/{escaped}", f"/v1/topics/{escaped}/offsets", f"/v1/groups/{escaped}/offsets"):
        answer = target.get(path)
        assert answer.status in (200, 400, 404), (path, answer.body)
