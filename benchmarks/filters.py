"""Filtering: tag and SQL masks over batches of 10,000 messages, against Arrow on columns that are ready.

The messages have 100 tags and four properties, two of them numbers written as texts. The
ceiling makes the same comparisons on columns of the right types, as if every property
were one: the distance to it is what the property map and the numbers in texts cost.
Nothing is read or sent; one thread works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE
from rocketq_broker.filters.pull_filter import parse_filter

ROWS: Final = 10_000
TAGS: Final = 100
REGIONS: Final = ("eu", "us", "ap")

#: What is compared by a ceiling: the tag, and the properties as columns of their types.
Columns = dict[str, pa.Array]


def message_batch(seed: int) -> tuple[pa.RecordBatch, Columns]:
    """Return a batch, and what its properties say as columns."""
    random = np.random.default_rng(seed)
    columns = {
        "tag": pa.array([f"tag-{n}" for n in random.integers(TAGS, size=ROWS)]),
        "region": pa.array(REGIONS).take(random.integers(len(REGIONS), size=ROWS)),
        "amount": pa.array(random.integers(100_000, size=ROWS)),
        "ratio": pa.array(random.random(ROWS).round(4)),
        "strange": pa.array([None, 0.25, 0.1]).take(random.integers(3, size=ROWS)),
    }
    texts = {None: "unknown", 0.25: "0.25", 0.1: "1e-1"}
    properties = [
        [("region", region), ("amount", str(amount)), ("strange", texts[strange]), ("ratio", str(ratio))]
        for region, amount, strange, ratio in zip(
            *(columns[name].to_pylist() for name in ("region", "amount", "strange", "ratio")), strict=True
        )
    ]
    batch = data.batch(ROWS, seed).set_column(1, MESSAGE_SCHEMA.field("tag"), columns["tag"])
    properties_column = pa.array(properties, PROPERTIES_TYPE)
    return batch.set_column(3, MESSAGE_SCHEMA.field("properties"), properties_column), columns


def region_and_amount(columns: Columns) -> pa.BooleanArray:
    return pc.and_(pc.equal(columns["region"], "eu"), pc.greater(columns["amount"], 1000))


def three_terms(columns: Columns) -> pa.BooleanArray:
    amount = columns["amount"]
    between = pc.and_(pc.greater_equal(amount, 1000), pc.less_equal(amount, 5000))
    return pc.and_(pc.and_(pc.equal(columns["region"], "eu"), between), pc.less(columns["ratio"], 0.5))


#: Name, tag expression, SQL expression, and the same on ready columns.
CASES: Final[tuple[tuple[str, str | None, str | None, Callable[[Columns], pa.BooleanArray]], ...]] = (
    ("tag, 1 % match", "tag-7", None, lambda c: pc.equal(c["tag"], "tag-7")),
    (
        "three tags, 3 % match",
        "tag-7 || tag-8 || tag-9",
        None,
        lambda c: pc.is_in(c["tag"], value_set=pa.array(["tag-7", "tag-8", "tag-9"])),
    ),
    ("sql, one text", None, "region = 'eu'", lambda c: pc.equal(c["region"], "eu")),
    ("sql, one number", None, "amount > 90000", lambda c: pc.greater(c["amount"], 90000)),
    (
        "sql, three terms",
        None,
        "region = 'eu' AND amount BETWEEN 1000 AND 5000 AND ratio < 0.5",
        three_terms,
    ),
    (
        "sql, three terms, strange values",
        None,
        "region = 'eu' AND amount > 1000 AND strange < 0.2",
        lambda c: pc.and_kleene(region_and_amount(c), pc.less(c["strange"], 0.2)),
    ),
)


def turn(seconds: float, work: Callable[[], Any]) -> float:
    """Mask the batch again and again for a time; return messages a second."""
    masked = 0
    began = now = time.perf_counter()
    while now - began < seconds or not masked:
        work()
        masked += ROWS
        now = time.perf_counter()
    return masked / (now - began)


def ready_mask(compare_columns: Callable[[Columns], pa.BooleanArray], columns: Columns) -> Any:
    return pc.fill_null(compare_columns(columns), False).to_numpy(zero_copy_only=False)


def measure(chosen: Options) -> dict[str, Any]:
    batch, columns = message_batch(chosen.seed)
    results = {}
    for name, tag, sql, ready in CASES:
        wanted = parse_filter(tag, sql)
        assert wanted is not None
        mask = wanted.mask(batch)
        assert (mask == ready_mask(ready, columns)).all()
        say(f"-- {name}: {tag or sql}")
        ours = Contestant("filter", partial(turn, chosen.seconds, partial(wanted.mask, batch)))
        ceiling = Contestant(
            "ready columns", partial(turn, chosen.seconds, partial(ready_mask, ready, columns))
        )
        alternate([ours, ceiling], chosen.turns)
        results[name] = compare(ours, ceiling, "rows", None) | {"matched": round(float(mask.mean()), 4)}
    return results


def main() -> None:
    chosen = options("filters", "Mask batches of 10,000 messages by tag and by SQL.", seconds=0.2)
    introduce("filters")
    report("filters", chosen, measure(chosen))


if __name__ == "__main__":
    main()
