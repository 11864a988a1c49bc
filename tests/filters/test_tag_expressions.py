from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.errors import InvalidFilter
from rocketq.model import TAG_BYTES_MAX
from rocketq.protocol.filters.limits import EXPRESSION_BYTES_MAX
from rocketq.protocol.filters.tags import parse_tags
from tests.filters.refusals import refusal


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("A", ("A",)),
        ("A || B", ("A", "B")),
        ("  A||B \t||\n C ", ("A", "B", "C")),
        ("A || A || B || A", ("A", "B")),
        ("größer || 支付", ("größer", "支付")),
        ("a*b || *x", ("a*b", "*x")),
        ("*", ()),
        (" * ", ()),
        ("", ()),
        (" \t", ()),
    ],
)
def test_tags_are_separated_by_two_bars(expression: str, tags: tuple[str, ...]) -> None:
    assert parse_tags(expression) == tags


@pytest.mark.parametrize(
    ("expression", "position", "why"),
    [
        ("A || || B", 5, "a tag is missing"),
        ("A ||", 4, "a tag is missing"),
        ("|| A", 0, "a tag is missing"),
        ("||", 0, "a tag is missing"),
        ("A B", 1, "a tag has no white space"),
        ("A || B\tC", 6, "a tag has no white space"),
        ("A|B", 1, "a tag has no '|'"),
        ("A ||| B", 4, "a tag has no '|'"),
        ("* || A", 0, "* stands for every tag"),
        ("A || *", 5, "* stands for every tag"),
        ("A || " + "x" * (TAG_BYTES_MAX + 1), 5, f"{TAG_BYTES_MAX} are allowed"),
        ("ü" * 128, 0, "256 bytes"),
        ("A || \ud800", 5, "half of a pair"),
        ("A||" * (EXPRESSION_BYTES_MAX // 3) + "ABC", 0, f"{EXPRESSION_BYTES_MAX} are allowed"),
    ],
)
def test_a_wrong_tag_expression_is_refused_at_its_place(expression: str, position: int, why: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        parse_tags(expression)
    assert raised.value.position == position
    assert why in raised.value.facts["why"]


@given(st.text(alphabet=st.sampled_from("AB*|ü \t\ud800"), max_size=30) | st.text(max_size=30))
def test_hostile_text_gives_tags_or_a_place_in_it(expression: str) -> None:
    error = refusal(parse_tags, expression)
    if error is not None:
        assert 0 <= error.position <= len(expression)
        assert str(error).encode()
        return
    tags = parse_tags(expression)
    assert not any("|" in tag or tag != tag.strip() or not tag for tag in tags)
    assert parse_tags(" || ".join(tags)) == tags
