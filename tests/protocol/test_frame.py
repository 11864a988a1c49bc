from __future__ import annotations

import struct

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import (
    DURABLE_LAG_MAX,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    FrameKind,
    encode,
    frame_size,
    peek,
    scan,
    verify,
)
from tests.protocol.strategies import frame_bytes


def resealed(frame: bytes, at: int, form: str, value: int) -> bytes:
    """The frame with one field changed and the checksum made to fit: what an adversary sends."""
    changed = bytearray(frame)
    struct.pack_into(form, changed, at, value)
    struct.pack_into("<I", changed, 8, google_crc32c.value(bytes(changed[12:])))
    return bytes(changed)


@given(frame_bytes())
def test_a_frame_decodes_to_what_it_was_made_of(made: tuple[dict[str, object], bytes]) -> None:
    arguments, data = made
    frame = verify(pa.py_buffer(data))
    header = frame.header
    assert frame.topic.encode() == arguments["topic"]
    assert frame.body.to_pybytes() == arguments["body"]
    names = (
        "kind",
        "queue",
        "queue_offset",
        "count",
        "log_offset",
        "stored_at_us",
        "epoch",
        "schema_id",
        "has_keys",
        "published",
        "unfinished",
    )
    assert {name: getattr(header, name) for name in names} == {name: arguments[name] for name in names}
    assert header.durable_end == arguments["durable_end"]
    assert header.size == len(data) == frame_size(arguments["topic"], header.body_bytes)
    assert len(data) % 8 == 0
    assert peek(data) == header


@given(st.lists(frame_bytes(), max_size=5), st.sampled_from([bytes, bytearray, memoryview, pa.py_buffer]))
def test_a_scan_yields_every_frame_in_order(made: list[tuple[dict[str, object], bytes]], form: type) -> None:
    data = b"".join(frame for _, frame in made)
    assert [frame.body.to_pybytes() for frame in scan(form(data))] == [a["body"] for a, _ in made]


@given(frame_bytes(), st.data())
def test_any_flipped_bit_is_seen(made: tuple[dict[str, object], bytes], data: st.DataObject) -> None:
    damaged = bytearray(made[1])
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(CorruptFrame) as raised:
        verify(pa.py_buffer(bytes(damaged)))
    assert raised.value.offset == 0


@given(frame_bytes(), frame_bytes(), st.data())
def test_a_cut_tail_is_seen_where_it_begins(
    first: tuple[dict[str, object], bytes], second: tuple[dict[str, object], bytes], data: st.DataObject
) -> None:
    kept = data.draw(st.integers(1, len(second[1]) - 1))
    frames = scan(first[1] + second[1][:kept])
    next(frames)
    with pytest.raises(CorruptFrame) as raised:
        next(frames)
    assert raised.value.offset == len(first[1])


@given(st.binary(max_size=400))
def test_noise_is_no_frame(noise: bytes) -> None:
    if noise:
        with pytest.raises(CorruptFrame):
            list(scan(noise))
    else:
        assert list(scan(noise)) == []


SMALL = b"".join(
    bytes(part)
    for part in encode(
        kind=FrameKind.CHANGE, topic=b"t", body=b"{}", log_offset=0, stored_at_us=0, durable_end=0
    )
)


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (0, "<I", 0),
        (0, "<I", 8),
        (0, "<I", HEADER_BYTES),
        (0, "<I", len(SMALL) + 8),
        (0, "<I", 0xFFFF_FFF8),
        (4, "<I", 0x02465152),
        (17, "<B", 8),
        (17, "<B", 0x80),
        (24, "<Q", 2**63),
        (24, "<Q", 2**64 - 1),
        (32, "<Q", 2**63),
        (52, "<I", 0xFFFF_FFFF),
        (52, "<I", 3 + 8),
        (56, "<H", 0xFFFF),
        (58, "<H", 1),
        (64, "<B", 0xC3),
    ],
)
def test_a_lying_header_is_refused_although_its_checksum_fits(at: int, form: str, value: int) -> None:
    with pytest.raises(CorruptFrame):
        verify(pa.py_buffer(resealed(SMALL, at, form, value)))


def test_a_frame_past_the_size_limit_is_refused_from_its_header() -> None:
    body = FRAME_BYTES_MAX - HEADER_BYTES + 8
    header = bytearray(SMALL[:HEADER_BYTES])
    struct.pack_into("<I", header, 0, HEADER_BYTES + body)
    struct.pack_into("<I", header, 52, body)
    struct.pack_into("<H", header, 56, 0)
    with pytest.raises(CorruptFrame, match="does not fit"):
        peek(bytes(header))


def test_a_durable_lag_too_large_for_its_field_claims_nothing() -> None:
    """To claim too high an end would be evidence that convicts a torn tail of rot."""
    log_offset = 8 * (DURABLE_LAG_MAX + 1000)
    parts = encode(
        kind=FrameKind.CHANGE, topic=b"", body=b"", log_offset=log_offset, stored_at_us=0, durable_end=8
    )
    header = peek(bytes(parts[0]))
    assert header.durable_lag == DURABLE_LAG_MAX
    assert header.durable_end == 0
