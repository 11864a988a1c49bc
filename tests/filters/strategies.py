"""Hypothesis strategies for expressions and for the batches they are put to."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from rocketq.protocol.filters.sql_ast import (
    And,
    Between,
    Boolean,
    Compare,
    Comparison,
    Condition,
    In,
    IsNull,
    Match,
    MatchKind,
    Not,
    Number,
    Operand,
    Or,
    Property,
    Text,
)
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE

#: Few names and few values, so that expressions and messages meet.
NAMES = st.sampled_from(["a", "b", "A", "c.d", "$x_1", "like", "TAGS", "KEYS"])
VALUES = st.sampled_from(
    [
        *(
            "1",
            "2",
            "-1",
            "+1",
            "01",
            "1.0",
            "1.",
            ".5",
            "0.5",
            "-0",
            "0",
            "1e0",
            "1E+2",
            "100",
            "1e999",
            "-1e999",
        ),
        *("9007199254740993", "9007199254740992", "9007199254740992.5", "9223372036854775807"),
        *("-9223372036854775808", "9223372036854775808", "-9223372036854775809", "1" * 40),
        *(
            "",
            " 1",
            "1 ",
            "1\n",
            "nan",
            "inf",
            "Infinity",
            "0x10",
            "1_0",
            "1d",
            "٣",
            "--1",
            "+",
            ".",
            "1.2.3",
        ),
        *("true", "TRUE", "False", "yes", "x", "xyz", "yz", "it's", "paid", "größer", "k1 k2", "a\x00b"),
    ]
)
TEXTS = VALUES | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

_INT64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.builds(
    Number,
    st.sampled_from(
        [0, 1, -1, 2, 100, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, 1.0, -1.0, 1e2, float(2**63)]
    )
    | _INT64
    | st.floats(allow_nan=False, allow_infinity=False),
)
PROPERTIES = st.builds(Property, NAMES)
ORDERED = PROPERTIES | NUMBERS


@st.composite
def comparisons(draw: st.DrawFn) -> Compare:
    """Any comparison but one of literals of two types, which the grammar refuses."""
    comparison = draw(st.sampled_from(Comparison))
    if comparison.is_order:
        return Compare(comparison, draw(ORDERED), draw(ORDERED))
    kinds: list[st.SearchStrategy[Operand]] = [
        NUMBERS,
        st.builds(Text, TEXTS),
        st.builds(Boolean, st.booleans()),
    ]
    sides: st.SearchStrategy[Operand] = PROPERTIES | draw(st.sampled_from(kinds))
    return Compare(comparison, draw(sides), draw(sides))


@st.composite
def betweens(draw: st.DrawFn) -> Between:
    low, high = draw(ORDERED), draw(ORDERED)
    if isinstance(low, Number) and isinstance(high, Number) and low.value > high.value:
        low, high = high, low
    return Between(draw(ORDERED), low, high, draw(st.booleans()))


PREDICATES: st.SearchStrategy[Condition] = st.one_of(
    comparisons(),
    betweens(),
    st.builds(In, PROPERTIES, st.lists(TEXTS, min_size=1, max_size=4).map(tuple), st.booleans()),
    st.builds(IsNull, PROPERTIES, st.booleans()),
    st.builds(
        Match,
        st.sampled_from(MatchKind),
        PROPERTIES | st.builds(Text, TEXTS),
        # Most texts are found in no other one.
        TEXTS.filter(bool) | st.sampled_from(["1", "x", "e", "y"]),
        st.booleans(),
    ),
    st.builds(Boolean, st.booleans()),
)


def _joined(terms: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(terms, min_size=2, max_size=4).map(tuple)
    return st.builds(Not, terms) | st.builds(And, several) | st.builds(Or, several)


CONDITIONS: st.SearchStrategy[Condition] = st.recursive(PREDICATES, _joined, max_leaves=8)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A batch, or a slice of one: repeated names, null values, null maps with entries behind them."""
    rows = draw(st.integers(0, 12))
    entries = draw(
        st.lists(st.lists(st.tuples(NAMES, st.none() | TEXTS), max_size=5), min_size=rows, max_size=rows)
    )
    keys = st.none() | TEXTS.map(str.encode) | st.binary(max_size=6)
    properties = pa.array(entries, PROPERTIES_TYPE)
    if draw(st.booleans()) and rows:
        hidden = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        validity = pa.array([not null for null in hidden]).buffers()[1]
        properties = pa.Array.from_buffers(
            PROPERTIES_TYPE,
            rows,
            [validity, properties.buffers()[1]],
            children=[pa.StructArray.from_arrays([properties.keys, properties.items], fields=_ENTRY_FIELDS)],
        )
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(draw(st.lists(keys, min_size=rows, max_size=rows)), pa.binary()),
            pa.array(draw(st.lists(st.none() | TEXTS, min_size=rows, max_size=rows)), pa.string()),
            pa.array([b"body"] * rows, pa.binary()),
            properties,
            pa.nulls(rows, MESSAGE_SCHEMA.field("born_at").type),
        ],
        schema=MESSAGE_SCHEMA,
    )
    first = draw(st.integers(0, rows))
    return batch.slice(first, draw(st.integers(0, rows - first))) if draw(st.booleans()) else batch


_ENTRY_FIELDS = [PROPERTIES_TYPE.key_field, PROPERTIES_TYPE.item_field]
