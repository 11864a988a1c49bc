from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.protocol.hashing import NULL_HASH, hash_column, hash_value, queue_of
from tests.support.examples import examples

MASK = 2**64 - 1
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F


def reference(value: bytes | None) -> int:
    """The definition in the module's docstring, word by word."""
    if value is None:
        return 0
    hashed = len(value) * PRIME_1 % 2**64
    padded = value + bytes(-len(value) % 8) if value else bytes(8)
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        rotated = (hashed << 31 | hashed >> 33) & MASK
        hashed = (rotated ^ (word * PRIME_2 % 2**64)) * PRIME_1 % 2**64
    hashed ^= hashed >> 33
    hashed = hashed * PRIME_2 % 2**64
    hashed ^= hashed >> 29
    return hashed or 1


# Long enough for several words; lists long and short, since a few rows take another way than many.
VALUES = st.lists(st.none() | st.binary(max_size=40), max_size=60)
# All as long as each other, which is another way again; with nulls it is not.
EVEN = st.integers(0, 33).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=12, max_size=40)
)
FEW_LONG = st.lists(st.binary(max_size=8) | st.binary(min_size=50, max_size=90), min_size=12, max_size=40)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    column = pa.array(draw(VALUES | FEW_LONG | EVEN), pa.binary())
    if draw(st.booleans()):
        first = draw(st.integers(0, len(column)))
        column = column.slice(first, draw(st.integers(0, len(column) - first)))
    return column


@settings(max_examples=examples(300), deadline=None)
@given(columns())
def test_a_column_hashes_as_its_values_do_one_by_one(column: pa.Array) -> None:
    assert hash_column(column).tolist() == [reference(value) for value in column.to_pylist()]


@given(st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=30))
def test_text_hashes_as_its_utf8_bytes(values: list[str | None]) -> None:
    text = hash_column(pa.array(values, pa.string()))
    octets = hash_column(pa.array([None if v is None else v.encode() for v in values], pa.binary()))
    assert text.tolist() == octets.tolist()
    assert [hash_value(value) for value in values] == text.tolist()


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 24, 63, 64, 65, 32_767])
@pytest.mark.parametrize("rows", [1, 11, 12, 13, 40])
def test_every_length_around_a_word_hashes_alike_in_few_rows_and_many(length: int, rows: int) -> None:
    value = bytes(range(256))[: length % 256] + b"\xff" * (length - length % 256)
    hashes = hash_column(pa.array([value] * rows, pa.binary()))
    assert set(hashes.tolist()) == {reference(value)}
    one_long = hash_column(pa.array([b"short"] * rows + [value], pa.binary()))
    assert one_long.tolist() == [reference(b"short")] * rows + [reference(value)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([], pa.binary()),
        pa.array([], pa.string()),
        pa.nulls(3, pa.string()),
        pa.nulls(30, pa.binary()),
        pa.array([b""] * 30, pa.binary()),
        pa.array([b"", None] * 30, pa.binary()),
        pa.array([b"", b"\0", b"\0\0"] * 10, pa.binary()),
    ],
)
def test_empty_and_null_values_hash_to_different_things(column: pa.Array) -> None:
    assert hash_column(column).tolist() == [reference(_octets(value)) for value in column.to_pylist()]


def _octets(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def test_a_value_never_hashes_to_the_hash_of_a_null() -> None:
    # The only preimage of 0 cannot be written down here, but every value is kept from it in one place.
    assert NULL_HASH == 0
    assert reference(b"") != 0
    assert (
        hash_column(pa.array([bytes([n % 256]) * (n // 256) for n in range(5000)], pa.binary())) != 0
    ).all()


def test_what_is_hidden_under_a_null_does_not_matter() -> None:
    values = pa.array([b"hidden", b"seen"] * 10, pa.binary())
    masked = pa.Array.from_buffers(
        pa.binary(), 20, [pa.py_buffer(b"\xaa\xaa\x0a"), *values.buffers()[1:]], null_count=-1
    )
    assert hash_column(masked).tolist() == [0, reference(b"seen")] * 10


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.int64(), pa.binary(4)])
def test_another_type_is_refused_before_its_buffers_are_misread(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="string or binary"):
        hash_column(pa.nulls(20, kind))


@pytest.mark.parametrize("queues", [1, 2, 3, 4, 8, 16, 17])
@pytest.mark.parametrize("form", ["{}", "user-{}", "order-{:08d}", "{:036d}"])
def test_keys_spread_evenly_over_queues(queues: int, form: str) -> None:
    keys = pa.array([form.format(n).encode() for n in range(20_000)], pa.binary())
    counts = np.bincount(queue_of(hash_column(keys), queues), minlength=queues)
    expected = 20_000 / queues
    # Chi-squared beyond mean + 6 deviations would be a broken hash, not bad luck.
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi <= (queues - 1) + 6 * (2 * (queues - 1)) ** 0.5
