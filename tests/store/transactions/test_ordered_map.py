"""The ordered map against a plain dictionary, which keeps the order of insertion too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketq_broker.store.machines.ordered_map import OrderedMap

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers()), max_size=60)


@given(STEPS)
def test_entries_stay_in_the_order_of_their_last_insertion(steps: list[tuple[bool, int, int]]) -> None:
    made: OrderedMap[int, int] = OrderedMap()
    expected: dict[int, int] = {}
    for is_insertion, key, value in steps:
        before, told = made, list(made.items())
        if is_insertion:
            made = made.with_entry(key, value)
            expected.pop(key, None)
            expected[key] = value
        elif key in expected:
            made = made.without(key)
            del expected[key]
        assert list(before.items()) == told
        assert list(made.items()) == list(expected.items())
        assert list(made.values()) == list(expected.values())
        assert (len(made), made.first) == (len(expected), next(iter(expected), None))
        assert made.get(key) == expected.get(key)
        assert (key in made) == (key in expected)
        assert made == OrderedMap.of(expected.items())
