"""Filters messages by their tag.

The store first compares the hashes of tags, which lie in the units of the queue, and reads only the batches
with a matching hash. The filter then compares the tags themselves. (In RocketMQ the client does this second
step. Here the broker opens the batch anyway, to leave out the other messages.)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.protocol.hashing import hash_value


def tag_hashes(tags: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return the hashes of tags as they stand in ConsumeQueue units, sorted and not writeable."""
    hashes = np.unique(np.array([hash_value(tag) for tag in tags], dtype=np.uint64))
    hashes.flags.writeable = False
    return hashes


class TagFilter:
    """Wants the messages that have one of some tags (RocketMQ: ExpressionType.TAG)."""

    __slots__ = ("_values", "hashes", "tags")

    def __init__(self, tags: Iterable[str]) -> None:
        self.tags: tuple[str, ...] = tuple(tags)
        self.hashes: npt.NDArray[np.uint64] = tag_hashes(self.tags)
        self._values = pa.array(self.tags, pa.string())

    def __repr__(self) -> str:
        return f"TagFilter({' || '.join(self.tags)!r})"

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each message whether it has one of the tags."""
        column = batch.column("tag")
        if len(self._values) == 1:
            found = pc.equal(column, self._values[0])
            if found.null_count:
                found = pc.fill_null(found, False)
        else:
            found = pc.is_in(column, value_set=self._values)
        mask: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return mask
