"""Damage valid bytes in every way that comes to mind, and see that only our errors come out.

    python -m tests.protocol.hostile SEED COUNT

runs in a process of its own with bounded memory, because what is feared is a crash
of native code, a hang, or an allocation that a few bytes asked for. It exits 0 if
every read gave a sound value or an error of the tree. On any other ending, the last
line it wrote names the case; `SEED 1 CASE` repeats it.

    python -m tests.protocol.hostile read FILE

reads FILE as a stream and prints how that ended and what it took, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from rocketq.errors import InvalidRequest, RocketqError
from rocketq.errors.documents import from_document
from rocketq.model import Message
from rocketq.protocol.arrow.stream_reader import read_batch, read_stream
from rocketq.protocol.arrow.stream_writer import encapsulate, write_stream
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset, decode, encode
from rocketq.protocol.documents.nameserver import BrokerData, QueueData, TopicRoute
from rocketq.protocol.frame import FrameKind, peek, scan
from rocketq.protocol.frame import encode as encode_frame
from rocketq.protocol.frame_slices import SOURCE, filtered_body, open_frames
from rocketq.protocol.hashing import hash_column
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, from_messages

#: Far below what the damaged sizes ask for, above what Arrow and numpy reserve.
ADDRESS_SPACE: Final = 6 * 1024**3
CPU_SECONDS: Final = 600
#: What one read may take from Arrow's pool: the limit on inflated bytes, and as much as it works with.
POOL_BYTES_MAX: Final = 160 * 1024 * 1024

INTERESTING: Final = (
    0, 1, 2, 3, 4, 7, 8, 16, 20, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x0400_0000, 0x7FFF_FFFF,
    0x8000_0000, 0xFFFF_FFF8, 0xFFFF_FFFF, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1,
)  # fmt: skip


def batch_of(rng: random.Random, rows: int) -> pa.RecordBatch:
    return from_messages(
        [
            Message(
                rng.randbytes(rng.randrange(40)) * rng.randrange(1, 4),
                key=rng.choice([None, b"", rng.randbytes(12)]),
                tag=rng.choice([None, "", "paid", "größer"]),
                properties=rng.choice([None, {}, {"a": "b"}, {"ü": "", "x": "y" * 30}]),
                born_at_us=rng.choice([None, 0, 1_700_000_000_000_000]),
            )
            for _ in range(rows)
        ]
    )


def streams(rng: random.Random) -> list[bytes]:
    """Valid streams: each codec, one batch and several, our schema's bytes and another writer's."""
    made = [
        write_stream([batch_of(rng, n) for n in rows], codec).to_pybytes()
        for codec in (None, "lz4", "zstd")
        for rows in ((1,), (3, 30), (200,))
    ]
    foreign = pa.schema([pa.field(f.name, f.type) for f in MESSAGE_SCHEMA], metadata={"made": "elsewhere"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, foreign) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch_of(rng, 5).columns, schema=foreign))
    made.append(sink.getvalue().to_pybytes())
    return made


def frames(rng: random.Random) -> list[bytes]:
    """Valid frames of messages and of filtered messages."""
    made = []
    for codec in (None, "lz4", "zstd"):
        for rows in (1, 40):
            batch = batch_of(rng, rows)
            made.append(_frame(FrameKind.MESSAGES, encapsulate(batch, codec), rows, 1000))
    offsets = np.array([7, 9, 50], dtype=np.int64)
    sources = np.array([(4096, 1, 2), (8192, 2, 1)], dtype=SOURCE)
    made.append(_frame(FrameKind.FILTERED, filtered_body(batch_of(rng, 3), offsets, sources), 3, 7))
    return made


def _frame(kind: FrameKind, body: bytes | pa.Buffer, count: int, queue_offset: int) -> bytes:
    parts = encode_frame(
        kind=kind, topic=b"orders", body=body, queue=1, queue_offset=queue_offset, count=count,
        log_offset=4096, stored_at_us=1, durable_end=0,
    )  # fmt: skip
    return b"".join(bytes(part) for part in parts)


def documents() -> list[bytes]:
    route = TopicRoute(
        "orders", 3, (QueueData("broker-a", 4, 4, 6, "i"),), (BrokerData("c", "broker-a", {0: "http://x:1"}),)
    )
    return [encode(route), encode(CommitOffsetsRequest((GroupOffset("orders", 1, 5),))), encode(
        {"code": "OFFSET_OUT_OF_RANGE", "message": "m", "hint": "h",
         "facts": {"topic": "t", "broker": "b", "queue": 1, "requested": 2, "min": 3, "max": 4}}
    )]  # fmt: skip


# --- damage ------------------------------------------------------------------------


def damaged(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return `data` with one to six wounds, most of them where the metadata is."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_WOUNDS)(rng, out, others)
        if not out:
            break
    return bytes(out)


def _place(rng: random.Random, out: bytearray, width: int = 1) -> int:
    reach = len(out) if rng.random() < 0.3 else min(len(out), 1600)
    return max(0, min(rng.randrange(reach) // width * width, len(out) - width))


def _flip(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    out[_place(rng, out)] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    out[_place(rng, out)] = rng.randrange(256)


def _number(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    width, form = rng.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
    if len(out) >= width:
        value = rng.choice((*INTERESTING, len(out), rng.randrange(2**16)))
        struct.pack_into(form, out, _place(rng, out, width), value % 256**width)


def _nudge(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    if len(out) >= 4:
        at = _place(rng, out, 4)
        value = struct.unpack_from("<I", out, at)[0] + rng.choice((-8, -4, -1, 1, 4, 8))
        struct.pack_into("<I", out, at, value % 2**32)


def _cut(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    del out[rng.randrange(len(out)) :]


def _drop(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    at = _place(rng, out)
    del out[at : at + rng.choice((1, 4, 8, 64, 500))]


def _double(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    at, size = _place(rng, out), rng.choice((8, 64, 500, len(out)))
    out[at:at] = out[at : at + size]


def _splice(rng: random.Random, out: bytearray, others: list[bytes]) -> None:
    other = rng.choice(others)
    at, start = _place(rng, out, 8), rng.randrange(len(other)) // 8 * 8
    piece = other[start : start + rng.choice((8, 64, 1000))]
    out[at : at + len(piece)] = piece


_WOUNDS: Final[tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...]] = (
    _flip, _flip, _byte, _number, _number, _number, _nudge, _cut, _drop, _double, _splice,
)  # fmt: skip


# --- the attack --------------------------------------------------------------------


def use(batch: pa.RecordBatch) -> None:
    """Do with an accepted batch what brokers and clients do; a batch that was let in must bear it."""
    hash_column(batch.column("key"))
    hash_column(batch.column("tag"))
    for name in ("key", "tag", "body", "properties"):
        batch.column(name).to_pylist()
    part = batch.slice(batch.num_rows // 2)
    assert read_batch(encapsulate(part)).equals(part)
    batch.column("born_at").cast(pa.int64()).to_pylist()


def attack_stream(data: bytes) -> None:
    for message in read_stream(data):
        use(message.batch)
        assert read_batch(message.encapsulated).equals(message.batch)


def attack_frame(data: bytes, rng: random.Random) -> None:
    if len(data) >= 64 and rng.random() < 0.9:
        # An adversary's checksum fits, and its lengths do too.
        sealed = bytearray(data + bytes(-len(data) % 8))
        if rng.random() < 0.5:
            topic = struct.unpack_from("<H", sealed, 56)[0]
            struct.pack_into("<I", sealed, 0, len(sealed))
            struct.pack_into("<I", sealed, 52, max(0, len(sealed) - 64 - (topic + 7 & ~7)))
        struct.pack_into("<I", sealed, 8, google_crc32c.value(bytes(sealed[12:])))
        data = bytes(sealed)
    for frame in scan(data):
        peek(data)
        read_batch(frame.body)
    for piece in open_frames(data, rng.choice((0, 8, 1001)), rng.choice((None, 1003, 2**63 - 1))):
        use(piece.batch)
        assert len(piece.offsets()) == piece.batch.num_rows
        assert piece.offset < piece.next_offset < 2**63


def attack_document(data: bytes) -> None:
    for kind in (TopicRoute, CommitOffsetsRequest, dict[str, Any]):
        try:
            value: Any = decode(data, kind)
        except InvalidRequest:
            continue
        if isinstance(value, dict):
            str(from_document(value, 400))


def one(seed: int, case: int) -> None:
    """Run one case: valid bytes of one form, damaged, and read."""
    rng = random.Random(seed * 1_000_003 + case)
    form = case % 8
    try:
        if form < 4:
            pool = streams(rng)
            attack_stream(damaged(rng, rng.choice(pool), pool))
        elif form < 7:
            pool = frames(rng)
            whole = b"".join(rng.sample(pool, rng.choice((1, 1, 2))))
            attack_frame(damaged(rng, whole, pool), rng)
        else:
            pool = documents()
            attack_document(damaged(rng, rng.choice(pool), pool))
    except RocketqError:
        pass
    peak = pa.default_memory_pool().max_memory()
    assert peak < POOL_BYTES_MAX, f"a read took {peak} bytes"


def main(seed: int, count: int, first: int = 0) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    for case in range(first, first + count):
        # Before the case: if the process dies, this is the last it said.
        os.write(2, f"seed {seed} case {case}\n".encode())
        one(seed, case)


def read(path: Path) -> dict[str, Any]:
    """Read one file as a stream; say how it ended, and the most that Arrow and Python held for it."""
    data = path.read_bytes()
    tracemalloc.start()
    began = pa.default_memory_pool().max_memory()
    try:
        code = str(sum(message.batch.num_rows for message in read_stream(data)))
    except RocketqError as error:
        code = error.code
    peak = pa.default_memory_pool().max_memory() - began + tracemalloc.get_traced_memory()[1]
    return {"ended": code, "bytes": peak}


if __name__ == "__main__":
    if sys.argv[1] == "read":
        print(json.dumps(read(Path(sys.argv[2]))))
    else:
        main(*map(int, sys.argv[1:]))
