"""Bytes that mean harm. What may crash or bloat a process runs in one of its own."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rocketq.errors import InvalidBatch, TooLarge
from rocketq.model import Message
from rocketq.protocol.arrow.stream_reader import read_stream
from rocketq.protocol.arrow.stream_writer import encapsulate, write_stream
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, from_messages

MIB = 1024 * 1024
REPOSITORY = Path(__file__).parents[2]


def attack(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.protocol.hostile", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_damage_gets_past_the_readers_as_a_crash() -> None:
    ended = attack("1", "700")
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 108))
def test_no_damage_gets_past_the_readers_in_a_long_attack(seed: int) -> None:
    ended = attack(str(seed), "30000")
    assert ended.returncode == 0, ended.stderr[-3000:]


def batch_of_zeros(rows: int, size: int) -> pa.RecordBatch:
    columns = [pa.nulls(rows, f.type) for f in MESSAGE_SCHEMA]
    offsets = np.arange(0, rows * size + 1, size, dtype=np.int32)
    columns[2] = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(bytes(rows * size))]
    )
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def as_stream(messages: list[bytes]) -> bytes:
    return b"".join([MESSAGE_SCHEMA.serialize(), *messages, b"\xff\xff\xff\xff\0\0\0\0"])


def understated(stream: bytes, claimed: int, actual: int) -> bytes:
    """The stream with one buffer's inflated size, `actual`, replaced by another."""
    # It comes after the offsets, which end with the same number.
    before, old, after = stream.rpartition(struct.pack("<q", actual))
    assert old
    return before + struct.pack("<q", claimed) + after


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("form", ["one", "many"])
def test_a_bomb_is_refused_from_its_metadata_and_nothing_is_inflated(
    tmp_path: Path, codec: str, form: str
) -> None:
    if form == "one":
        bomb = write_stream([batch_of_zeros(2, 100 * MIB)], codec).to_pybytes()
    else:
        bomb = as_stream([encapsulate(batch_of_zeros(1, 20 * MIB), codec).to_pybytes()] * 10)
    assert len(bomb) < MIB
    (tmp_path / "bomb").write_bytes(bomb)
    told: dict[str, Any] = json.loads(attack("read", str(tmp_path / "bomb")).stdout)
    assert told["ended"] == "TOO_LARGE"
    # Of many batches each of which is small enough, some may have been opened before the sum was not.
    assert told["bytes"] < (MIB if form == "one" else 66 * MIB)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("claimed", [0, 1, 8, 4096, MIB, 20 * MIB - 8, -1])
def test_a_buffer_that_inflates_beyond_its_claim_is_refused_early(
    tmp_path: Path, codec: str, claimed: int
) -> None:
    stream = write_stream([batch_of_zeros(1, 20 * MIB)], codec).to_pybytes()
    (tmp_path / "liar").write_bytes(understated(stream, claimed, 20 * MIB))
    told: dict[str, Any] = json.loads(attack("read", str(tmp_path / "liar")).stdout)
    assert told["ended"] == "INVALID_BATCH"
    assert told["bytes"] < max(claimed, 0) + 2 * MIB


@pytest.mark.parametrize("claimed", [-2, -(2**63)])
def test_a_buffer_that_claims_a_negative_size_is_refused(claimed: int) -> None:
    stream = write_stream([batch_of_zeros(1, 100_000)], "zstd").to_pybytes()
    with pytest.raises(InvalidBatch, match="negative"):
        read_stream(understated(stream, claimed, 100_000))


@pytest.mark.parametrize("claimed", [2**31, 2**40, 2**63 - 1])
def test_a_buffer_that_claims_a_huge_size_is_too_large(claimed: int) -> None:
    stream = write_stream([batch_of_zeros(1, 100_000)], "zstd").to_pybytes()
    with pytest.raises(TooLarge):
        read_stream(understated(stream, claimed, 100_000))


def test_the_older_way_to_ask_for_compression_is_refused_with_its_version() -> None:
    """Arrow 0.17 named the codec in custom metadata, which a reader of version 4 still obeys."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, MESSAGE_SCHEMA, options=options) as writer:
        writer.write_batch(
            from_messages([Message(b"x" * 100)]),
            custom_metadata={"ARROW:experimental_compression": "zstd"},
        )
    with pytest.raises(InvalidBatch, match="version is not 5"):
        read_stream(sink.getvalue())


def test_a_big_endian_stream_is_refused_not_misread() -> None:
    native = MESSAGE_SCHEMA.with_metadata({"m": "m"})
    message = native.serialize().to_pybytes()
    swapped = _big_endian(message)
    stream = swapped + encapsulate(from_messages([Message(b"x")])).to_pybytes()
    with pytest.raises(InvalidBatch, match="big-endian"):
        read_stream(stream)


def _big_endian(schema: bytes) -> bytes:
    """Find by trial the byte that holds the endianness of a schema message."""
    for at in range(8, len(schema)):
        changed = bytearray(schema)
        changed[at] = 1
        try:
            read_stream(bytes(changed))
        except InvalidBatch as error:
            if "big-endian" in error.message:
                return bytes(changed)
    # A default is not stored in a flatbuffer: point the vtable's slot at two bytes that hold a 1.
    for slot in range(8, len(schema) - 1, 2):
        for distance in range(4, 64, 2):
            changed = bytearray(schema)
            struct.pack_into("<H", changed, slot, distance)
            try:
                read_stream(bytes(changed))
            except InvalidBatch as error:
                if "big-endian" in error.message:
                    return bytes(changed)
    raise AssertionError("no byte of the schema makes it big-endian")


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_buffers_that_are_not_aligned_are_refused(offset: int) -> None:
    stream = bytearray(write_stream([from_messages([Message(b"x" * 1000)])]))
    # The body column's data buffer: 1000 bytes, the only buffer of that length.
    [at] = [i for i in range(0, len(stream) - 8, 8) if stream[i : i + 8] == struct.pack("<q", 1000)]
    [start] = struct.unpack_from("<q", stream, at - 8)
    struct.pack_into("<qq", stream, at - 8, start + offset, 1000 - 8)
    with pytest.raises(InvalidBatch, match="unaligned"):
        read_stream(bytes(stream))
