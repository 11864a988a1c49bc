"""The copy of a message that failed, or whose last lease ran out, as columns: retries and dead letters alike.

What a copy says of itself is described in `rocketq.protocol.rules.retry_properties`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rocketq.model import UNIQUE_ID_PROPERTY
from rocketq.protocol.property_columns import Entries, with_columns
from rocketq.protocol.rules.delivery_time import DELIVER_MS, DELIVERY_PROPERTIES
from rocketq.protocol.rules.retry_properties import (
    FAILURES,
    ORIGINAL_ID,
    ORIGINAL_TOPIC,
    REASON,
    WRITTEN_PROPERTIES,
)


def with_return(
    batch: pa.RecordBatch,
    found: Entries,
    *,
    failures: pa.Array,
    topics: pa.StringArray,
    ids: pa.StringArray,
    reasons: pa.StringArray,
    due: pa.StringArray | None = None,
) -> pa.RecordBatch:
    """Return the copies of messages with the properties `found`: how often they failed, why, and whence.

    `topics` and `ids` name the originals; `due` is when they are tried again, in ms, null for dead letters.
    """
    columns = {
        FAILURES: pc.cast(failures, pa.string()),
        ORIGINAL_TOPIC: topics,
        ORIGINAL_ID: ids,
        REASON: reasons,
        UNIQUE_ID_PROPERTY: pc.coalesce(found.column(UNIQUE_ID_PROPERTY), ids),
    }
    if due is not None:
        columns[DELIVER_MS] = due
    return with_columns(batch, found.without((*WRITTEN_PROPERTIES, *DELIVERY_PROPERTIES)), columns)
