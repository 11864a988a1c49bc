"""Properties that are added to the messages of a batch, against the same done message by message."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rocketq.producing.added_properties import lacks, rows_with, with_properties
from rocketq.protocol.message_schema import PROPERTIES_TYPE

PROPERTIES = st.none() | st.dictionaries(st.sampled_from("abc"), st.text(max_size=3), max_size=3)
ROWS = st.lists(st.tuples(PROPERTIES, st.booleans()), min_size=1, max_size=12)


@given(rows=ROWS, before=st.integers(0, 3), names=st.sampled_from([("x",), ("x", "y")]))
def test_properties_are_put_behind_those_that_messages_have(
    rows: list[tuple[dict[str, str] | None, bool]], before: int, names: tuple[str, ...]
) -> None:
    given_properties = [None if own is None else list(own.items()) for own, _ in rows]
    # A slice of a longer column has offsets that do not begin at 0.
    column = pa.array([[("x", "before")]] * before + given_properties, PROPERTIES_TYPE).slice(before)
    mask = np.array([chosen for _, chosen in rows])
    count = int(mask.sum())
    added = {name: pa.array([f"{name}{n}" for n in range(count)], pa.string()) for name in names}
    made = with_properties(column, mask, added)
    numbers = iter(range(count))
    expected = []
    for own, chosen in rows:
        number = next(numbers) if chosen else 0
        expected.append([*(own or {}).items(), *((n, f"{n}{number}") for n in names if chosen)])
    assert [list(each or ()) for each in made.to_pylist()] == expected
    made.validate(full=True)
    assert rows_with(made, "x").tolist() == np.flatnonzero(mask).tolist()
    assert lacks(made, "x").tolist() == (~mask).tolist()
    assert rows_with(column, "a", "v").tolist() == [
        number for number, (own, _) in enumerate(rows) if own is not None and own.get("a") == "v"
    ]
