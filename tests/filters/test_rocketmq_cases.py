"""The inputs of RocketMQ's own tests of expressions (ExpressionTest, ParserTest), and what they must give.

Two kinds of its inputs are left out: those whose property is a Java number, Boolean or Object, which
no message can have, and those that build an expression without a text.
"""

from __future__ import annotations

import pytest

from rocketq.errors import InvalidFilter
from rocketq.model import Message
from rocketq.protocol.filters.sql_parser import parse_sql
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.filters.sql import SqlFilter

AND = "a=3 and b<>4 And c>5 AND d<=4"
OR = "a=3 or b<>4 Or c>5 OR d<=4"
IN = "a in ('3', '4', '5')"
NOT_IN = "a not in ('3', '4', '5')"
BETWEEN = "a between 2 and 10"
NOT_BETWEEN = "a not between 2 and 10"
EQUAL = "a is not null and a='hello'"
BOOLEAN = "a=TRUE OR b=FALSE"
NULL_OR = "a is null OR a='hello'"
ALL_IN_ONE = "a not in ('4', '4', '5') and b between 3 and 10 and c not {} 'axbc'"
OPERATORS = ("contains", "startswith", "endswith")
ANY = {"whatever": "whatever"}

COMPARISONS = [
    (AND, {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
    (AND, {"a": "4", "b": "5", "c": "6", "d": "1"}, False),
    (OR, {"a": "3"}, True),
    (OR, {"a": "4", "b": "5"}, True),
    (OR, {"a": "4", "b": "4", "c": "6"}, True),
    (OR, {"a": "4", "b": "4", "c": "3", "d": "2"}, True),
    (OR, {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
    *((IN, {"a": value}, True) for value in "345"),
    (IN, {"a": "8"}, False),
    (NOT_IN, {"a": "8"}, True),
    *((NOT_IN, {"a": value}, False) for value in "345"),
    *((BETWEEN, {"a": value}, True) for value in ("2", "10", "3")),
    *((BETWEEN, {"a": value}, False) for value in ("1", "11")),
    *((NOT_BETWEEN, {"a": value}, True) for value in ("1", "11")),
    *((NOT_BETWEEN, {"a": value}, False) for value in ("2", "10", "3")),
    ("a is null", {"abc": "2"}, True),
    ("a is null", {"a": "2"}, False),
    ("a is not null", {"a": "2"}, True),
    ("a is not null", {"abc": "2"}, False),
    (EQUAL, {"a": "hello"}, True),
    (EQUAL, {}, False),
    (NULL_OR, {}, True),
    (NULL_OR, {"a": "hello"}, True),
    (NULL_OR, {"a": "abc"}, False),
    (BOOLEAN, {"a": "true", "b": "false"}, True),
    (BOOLEAN, {"a": "false", "b": "true"}, False),
    ("a > 3.1E10", {"a": "3.1415E10"}, True),
    ("a > 3.14", {"a": "3.1415"}, True),
    ("a > b", {"a": "10", "b": "20"}, False),
    ("a > b", {"a": "20", "b": "10"}, True),
    ("a between up and low", {"a": "3.14"}, False),
    ("a between up and low", {"a": "3.14", "up": "up", "low": "low"}, False),
    ("key is not null and key between 0 and 100", {"key": "con"}, False),
    ("a between 0 and 100", {"a": "abc"}, False),
    ("a=b", {"a": "3.14", "b": "3.14"}, True),
    ("a<>b", {"a": "3.14", "b": "3.14"}, False),
    ("a<>b", {"a": "3.14", "b": "3.141"}, True),
]

#: What stands left of the operator, whether NOT does, the three texts searched for, the message, the result.
SEARCHES = [
    ("value", "", ("x", "ax", "xb"), {"value": "axb"}, True),
    ("value", "not ", ("x", "ax", "xb"), {"value": "axb"}, False),
    ("value", "", ("x", "x", "x"), {"value": "abb"}, False),
    ("value", "not ", ("x", "x", "x"), {"value": "abb"}, True),
    ("value", "", ("x", "x", "x"), {}, False),
    ("value", "not ", ("x", "x", "x"), {}, False),
    ("'axb'", "", ("x", "ax", "xb"), ANY, True),
    ("'axb'", "not ", ("x", "ax", "xb"), ANY, False),
    ("'axb'", "", ("u", "u", "u"), ANY, False),
    ("'axb'", "not ", ("u", "u", "u"), ANY, True),
    ("' '", "", (" ", " ", " "), ANY, True),
    ("' '", "not ", (" ", " ", " "), ANY, False),
    ("'axb'", "", (".", ".", "."), ANY, False),
    ("'axb'", "not ", (".", ".", "."), ANY, True),
    ("'s'", "", ("\\", "\\", "\\"), ANY, False),
]

CASES = [
    *COMPARISONS,
    *(
        (f"{left} {negation}{operator} '{text}'", message, delivered)
        for left, negation, texts, message, delivered in SEARCHES
        for operator, text in zip(OPERATORS, texts, strict=True)
    ),
    *((ALL_IN_ONE.format(operator), {"a": "3", "b": "3", "c": "axbdc"}, True) for operator in OPERATORS),
]


@pytest.mark.parametrize(("expression", "properties", "delivered"), CASES)
def test_messages_are_delivered_as_by_rocketmq(
    expression: str, properties: dict[str, str], delivered: bool
) -> None:
    batch = from_messages([Message(b"body", properties=properties)])
    assert SqlFilter(parse_sql(expression)).mask(batch).tolist() == [delivered]


def test_a_tag_with_quotes_is_found_as_by_rocketmq() -> None:
    batch = from_messages([Message(b"body", tag="''tag''"), Message(b"body", tag="tag")])
    chosen = SqlFilter(parse_sql("TAGS is not null and TAGS='''''tag'''''"))
    assert chosen.mask(batch).tolist() == [True, False]


@pytest.mark.parametrize(
    "expression",
    [
        *(AND, "a=3  and    b<>4 And c>5 AND d<=4", OR, IN, "a is null", "a is not null", "a <= now"),
        "(a not in ('6', '4', '5')) or (b in ('3', '4', '5'))",
        "(a between 2 and 10) AND (b not between 6 and 9)",
        "a=3 and b contains 'xxx' and c not contains 'xxx'",
    ],
)
def test_what_rocketmq_parses_is_parsed(expression: str) -> None:
    parse_sql(expression)


@pytest.mark.parametrize(
    "expression",
    [
        *("a and between 2 and 10", " a between 10 and 0", "a > 100000000000000000000000"),
        "a > 1" + "1" * 104_448 + "." + "1" * 104_448,
        *("value contains x", "value not contains x", "value contains 123", "value not contains 123"),
        *("'axb' contains ", "'axb' not contains "),
    ],
)
def test_what_rocketmq_refuses_is_refused(expression: str) -> None:
    with pytest.raises(InvalidFilter):
        parse_sql(expression)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("left", ["value", "'axb'", "value not", "'axb' not"])
def test_an_empty_search_is_refused_where_rocketmq_never_delivers(left: str, operator: str) -> None:
    with pytest.raises(InvalidFilter, match="empty text"):
        parse_sql(f"{left} {operator} ''")
