"""Small batches that come together share a frame, but no frame grows past what a reader takes in."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rocketq.protocol.sizes import INFLATED_BYTES_MAX
from rocketq_broker.store.commit.commit_plan import MERGED_BYTES_MAX
from tests.support.store_driver import batch, burst, config, opened


def test_batches_that_are_small_only_while_compressed_are_not_merged(tmp_path: Path) -> None:
    sent = [batch(0, [bytes([n]) * (30 << 20)], codec="zstd") for n in range(3)]
    assert all(len(each.encapsulated) < 16_384 for each in sent)
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        burst(driver.store, [partial(driver.store.append, "t", [each]) for each in sent])
        found = driver.slices("t", 0)
        assert [piece.batch.num_rows for piece in found] == [1, 1, 1]
        assert all(piece.header.size < 16_384 for piece in found)


def test_a_merged_frame_is_no_larger_than_its_limit_once_inflated(tmp_path: Path) -> None:
    assert MERGED_BYTES_MAX < INFLATED_BYTES_MAX
    sent = [batch(0, [bytes(10_000)], codec="zstd") for _ in range(300)]
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        burst(driver.store, [partial(driver.store.append, "t", [each]) for each in sent])
        found = driver.slices("t", 0)
        assert sum(piece.batch.num_rows for piece in found) == 300
        assert len(found) < 30
        assert max(piece.header.size for piece in found) <= MERGED_BYTES_MAX + 4096
