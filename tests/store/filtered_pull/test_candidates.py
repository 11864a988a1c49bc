"""The pieces that a filtered scan finds in the units, and how many of them it reads together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import CorruptFrame
from rocketq.model import Message
from rocketq.protocol.frame_slices import open_frames
from rocketq_broker.store.filtered_pull import candidates as looked_at
from rocketq_broker.store.filtered_pull.candidates import Piece, Room, read_together
from rocketq_broker.store.log.frame_lookup import Place
from tests.store.filtered_pull.test_scan import OnlyTag, count_reads, pull_through, pulled
from tests.support.store_driver import Driver, config, opened

LARGE = Room(messages=1 << 20, answer_bytes=1 << 30, frame_bytes=1 << 30)


def piece(log_offset: int, size: int, messages: int = 1, likely_bytes: int = 0) -> Piece:
    return Piece(Place(log_offset, size, 0), np.arange(messages), likely_bytes)


def place_of(driver: Driver, offset: int) -> int:
    """The log offset of the frame that holds a queue offset."""
    chunks = driver.store.pull("t", 0, offset, max_bytes=1).chunks
    return next(iter(open_frames(b"".join(chunks), offset))).header.log_offset


def send(driver: Driver, frames: list[list[bool]], body: bytes = b"") -> list[tuple[int, bytes]]:
    """Send a frame for each list, its messages tagged `rare` where that says so; return those."""
    wanted: list[tuple[int, bytes]] = []
    offset = 0
    for frame in frames:
        bodies = [b"%d" % (offset + row) + body for row in range(len(frame))]
        tags = ["rare" if rare else "common" for rare in frame]
        driver.send("t", 0, [Message(each, tag=tag) for each, tag in zip(bodies, tags, strict=True)])
        wanted += [(offset + row, bodies[row]) for row, rare in enumerate(frame) if rare]
        offset += len(frame)
    return wanted


@settings(max_examples=12, deadline=None)
@given(
    frames=st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=25),
    run_units=st.integers(1, 40),
    read_bytes=st.sampled_from([1, 3_000, 1 << 20]),
    body_bytes=st.sampled_from([0, 0, 20_000]),
    wanted_at_once=st.integers(1, 50),
)
def test_what_is_found_does_not_depend_on_how_units_and_frames_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    frames: list[list[bool]],
    run_units: int,
    read_bytes: int,
    body_bytes: int,
    wanted_at_once: int,
) -> None:
    directory = tmp_path_factory.mktemp("store")
    with opened(config(directory, merge_bytes=0)) as driver, pytest.MonkeyPatch.context() as patch:
        patch.setattr(looked_at, "RUN_UNITS", run_units)
        patch.setattr(looked_at, "READ_BYTES_MAX", read_bytes)
        driver.create("t", queues=1)
        wanted = send(driver, frames, bytes(body_bytes))
        for by_hash in (True, False):
            assert pull_through(driver, OnlyTag("rare", by_hash)) == wanted
            few = pull_through(driver, OnlyTag("rare", by_hash), max_messages=wanted_at_once)
            assert few == wanted


def test_small_frames_side_by_side_are_read_at_once_and_a_large_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    with opened(config(tmp_path, merge_bytes=0)) as driver:
        driver.create("t", queues=1)
        wanted = send(driver, [[True]] * 30)
        driver.send("t", 0, [Message(bytes(1_100_000), tag="rare")])
        driver.store.flush()
        driver.store.catch_up_index()
        count_reads(monkeypatch, read)
        found = pull_through(driver, OnlyTag("rare"), max_bytes=1 << 20)
        sizes = list(read)
    assert found == [*wanted, (30, bytes(1_100_000))]
    assert len(sizes) == 2
    assert sizes[1] > 1_100_000


def test_a_scan_that_reaches_a_damaged_frame_names_its_place(tmp_path: Path) -> None:
    with opened(config(tmp_path, merge_bytes=0)) as driver:
        driver.create("t", queues=1)
        wanted = send(driver, [[True, False]] * 20, bytes(500))
        damaged = place_of(driver, 24)
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(damaged + 200)
            file.write(b"\xff")
        before = driver.store.pull("t", 0, 0, max_bytes=1 << 20, max_messages=12, chosen=OnlyTag("rare"))
        assert pulled(before, 0) == wanted[:12]
        with pytest.raises(CorruptFrame) as raised:
            driver.store.pull("t", 0, before.next_offset, max_bytes=1 << 20, chosen=OnlyTag("rare"))
        assert raised.value.facts["log_offset"] == damaged
        all_before = driver.store.pull("t", 0, 0, max_bytes=1 << 20, chosen=OnlyTag("rare"))
        assert pulled(all_before, 0) == wanted[:12]


@pytest.mark.parametrize(
    ("each", "room"),
    [
        (piece(0, looked_at.READ_BYTES_MAX // 4), LARGE),
        (piece(0, 100, messages=3), LARGE._replace(messages=12)),
        (piece(0, 100, likely_bytes=30), LARGE._replace(answer_bytes=120)),
        (piece(0, 100), LARGE._replace(frame_bytes=400)),
    ],
)
def test_pieces_are_read_together_while_there_is_room(each: Piece, room: Room) -> None:
    assert [len(pieces) for pieces in read_together(iter([each] * 10), lambda: room)] == [4, 4, 2]


def test_one_piece_is_read_even_if_there_is_room_for_none() -> None:
    assert [
        len(pieces) for pieces in read_together(iter([piece(0, 1 << 30)] * 2), lambda: Room(0, 0, 0))
    ] == [1, 1]


def test_an_error_behind_pieces_is_raised_after_them() -> None:
    def failing() -> Iterator[Piece]:
        yield piece(0, 100)
        yield piece(100, 100)
        raise FileNotFoundError

    found = read_together(failing(), lambda: LARGE)
    assert len(next(found)) == 2
    with pytest.raises(FileNotFoundError):
        next(found)
