from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import InvalidFilter
from rocketq.protocol.filters.limits import (
    CONDITIONS_MAX,
    EXPRESSION_BYTES_MAX,
    LIST_MAX,
    NESTING_MAX,
    PROPERTIES_MAX,
)
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
    Or,
    Property,
    Text,
)
from rocketq.protocol.filters.sql_parser import parse_sql
from tests.filters.printing import tokens
from tests.filters.refusals import refusal
from tests.filters.strategies import CONDITIONS
from tests.support.examples import examples

A, B, C = Property("a"), Property("b"), Property("c")
ONE, TWO = Number(1), Number(2)


def equal(left: Property, right: Number) -> Compare:
    return Compare(Comparison.EQUAL, left, right)


SPACES = st.sampled_from([" ", "  ", "\t", "\n", "\r\n", " /* a ' comment */ ", " -- to the end\n", "/***/"])


def spelled(word: str, seed: int) -> str:
    """A keyword in some mixture of cases; anything else as it is."""
    if not (word.isalpha() and word.isupper() and len(word) > 1) or word in ("TAGS", "KEYS"):
        return word
    return "".join(c.lower() if seed >> at & 1 else c for at, c in enumerate(word))


@settings(max_examples=examples(300))
@given(CONDITIONS, st.data())
def test_what_is_printed_is_parsed_to_the_same(condition: Condition, data: st.DataObject) -> None:
    words = list(tokens(condition))
    seed = data.draw(st.integers(0, 2**10))
    text = words[0]
    for word in words[1:]:
        text += data.draw(SPACES) + spelled(word, seed)
    parse_sql.cache_clear()
    if len(text.encode()) <= EXPRESSION_BYTES_MAX:
        assert repr(parse_sql(text)) == repr(condition)
        assert parse_sql(text) == condition


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a=1", equal(A, ONE)),
        ("a<>1", Compare(Comparison.NOT_EQUAL, A, ONE)),
        ("a>-1", Compare(Comparison.GREATER, A, Number(-1))),
        ("+ 1 >=a", Compare(Comparison.GREATER_EQUAL, ONE, A)),
        ("a<=.5", Compare(Comparison.LESS_EQUAL, A, Number(0.5))),
        ("a<5.", Compare(Comparison.LESS, A, Number(5.0))),
        ("a = 5E3", Compare(Comparison.EQUAL, A, Number(5000.0))),
        ("a = 5.0e-1", Compare(Comparison.EQUAL, A, Number(0.5))),
        ("a = 1L", equal(A, ONE)),
        ("a = 1l", equal(A, ONE)),
        ("a = 0L", equal(A, Number(0))),
        ("a = 9223372036854775807L", equal(A, Number(2**63 - 1))),
        ("a = 5.E10", Compare(Comparison.EQUAL, A, Number(5e10))),
        ("a = .5E+3", Compare(Comparison.EQUAL, A, Number(500.0))),
        ("a = 00.50", Compare(Comparison.EQUAL, A, Number(0.5))),
        ("a = 9223372036854775807", equal(A, Number(2**63 - 1))),
        ("a = -9223372036854775808", equal(A, Number(-(2**63)))),
        ("a = 0.0", Compare(Comparison.EQUAL, A, Number(0.0))),
        ("a = ''", Compare(Comparison.EQUAL, A, Text(""))),
        ("a = 'it''s'", Compare(Comparison.EQUAL, A, Text("it's"))),
        ("a = '''x'' of ''y'''", Compare(Comparison.EQUAL, A, Text("'x' of 'y'"))),
        ("a = '-- no /* comment'", Compare(Comparison.EQUAL, A, Text("-- no /* comment"))),
        ("a = true", Compare(Comparison.EQUAL, A, Boolean(True))),
        ("$_a.b9 IS NULL", IsNull(Property("$_a.b9"))),
        ("a is not null", IsNull(A, negated=True)),
        ("a in ('x')", In(A, ("x",))),
        ("a NOT IN ('x' , 'y')", In(A, ("x", "y"), negated=True)),
        ("a Between 1 And 2", Between(A, ONE, TWO)),
        ("a NOT BETWEEN b AND c", Between(A, B, C, negated=True)),
        ("1 BETWEEN a AND b", Between(ONE, A, B)),
        ("a BETWEEN 1 AND 1", Between(A, ONE, ONE)),
        ("a contains 'x'", Match(MatchKind.CONTAINS, A, "x")),
        ("a NOT STARTSWITH 'x'", Match(MatchKind.STARTSWITH, A, "x", negated=True)),
        ("a ENDSWITH 'x'", Match(MatchKind.ENDSWITH, A, "x")),
        ("'axb' contains 'x'", Match(MatchKind.CONTAINS, Text("axb"), "x")),
        ("'axb' not endswith 'x'", Match(MatchKind.ENDSWITH, Text("axb"), "x", negated=True)),
        ("('') STARTSWITH 'x'", Match(MatchKind.STARTSWITH, Text(""), "x")),
        ("TRUE", Boolean(True)),
        ("(false)", Boolean(False)),
        ("a <= now", Compare(Comparison.LESS_EQUAL, A, Property("now"))),
        ("like = 1", equal(Property("like"), ONE)),
        ("(a) > (((2)))", Compare(Comparison.GREATER, A, TWO)),
        # Precedence: NOT binds closer than AND, AND closer than OR, and none closer than a comparison.
        ("NOT a = 1", Not(equal(A, ONE))),
        ("NOT a = 1 AND b = 2", And((Not(equal(A, ONE)), equal(B, TWO)))),
        ("a = 1 OR b = 1 AND c = 1", Or((equal(A, ONE), And((equal(B, ONE), equal(C, ONE)))))),
        ("(a = 1 OR b = 1) AND c = 1", And((Or((equal(A, ONE), equal(B, ONE))), equal(C, ONE)))),
        ("a BETWEEN 1 AND 2 AND b = 1", And((Between(A, ONE, TWO), equal(B, ONE)))),
        ("NOT NOT a IS NULL", Not(Not(IsNull(A)))),
        ("a = 1 AND b = 1 AND c = 1", And((equal(A, ONE), equal(B, ONE), equal(C, ONE)))),
        ("(a = 1 AND b = 1) AND c = 1", And((And((equal(A, ONE), equal(B, ONE))), equal(C, ONE)))),
        # RocketMQ's own tests of the parser (ParserTest).
        (
            "a=3  and    b<>4 And c>5",
            And(
                (
                    equal(A, Number(3)),
                    Compare(Comparison.NOT_EQUAL, B, Number(4)),
                    Compare(Comparison.GREATER, C, Number(5)),
                )
            ),
        ),
        ("(a not in ('6')) or (b in ('3'))", Or((In(A, ("6",), negated=True), In(B, ("3",))))),
    ],
)
def test_an_expression_says_what_sql_says(text: str, condition: Condition) -> None:
    assert parse_sql(text) == condition


@pytest.mark.parametrize(
    ("text", "position", "why", "hint"),
    [
        ("", 0, "empty", "leave the filter out"),
        (" \n", 0, "empty", ""),
        ("a", 0, "the property a alone", "a = TRUE"),
        ("a = 1 AND b", 10, "the property b alone", "b = TRUE"),
        ("NOT a", 4, "the property a alone", ""),
        ("5", 0, "a value alone", ""),
        ("'x' OR a = 1", 0, "a value alone", ""),
        ("a = 1 b = 2", 6, "AND, OR or the end was expected, 'b' was found", ""),
        ("a = 1 OR", 8, "a property or a value was expected, the end was found", ""),
        ("AND a = 1", 0, "'AND' was found", ""),
        ("a = = 1", 4, "'=' was found", ""),
        ("a IS 5", 5, "NULL was expected, '5' was found", ""),
        ("a NOT NULL", 6, "BETWEEN, IN, CONTAINS", ""),
        ("(a = 1", 6, "')' was expected, the end was found", ""),
        ("a = 1)", 5, "')' was found", ""),
        ("a = 'x", 4, "no end", "Close it with '"),
        ("a = 1 /* x", 6, "no end", "Close it with */"),
        ("a = ü", 4, "'ü'", "'quotes'"),
        ("a = NULL", 4, "NULL", "IS NULL"),
        ("a = 1 = 2", 6, "two sides", "a < b AND b < c"),
        ("a > 1 > 2", 6, "two sides", ""),
        ("(a = 1) = TRUE", 1, "a condition has no value", ""),
        ("(a = 1) IS NULL", 1, "IS NULL is said of a property", ""),
        ("'x' IN ('x')", 0, "IN is said of a property", ""),
        ("1 CONTAINS '1'", 0, "CONTAINS is said of a property or a text", "in 'quotes'"),
        ("TRUE NOT ENDSWITH 'e'", 0, "ENDSWITH is said of a property or a text", ""),
        ("(a = 1) STARTSWITH 'x'", 1, "STARTSWITH is said of a property or a text", ""),
        ("'x' CONTAINS ''", 13, "empty text", ""),
        ("a > 'x'", 4, "only numbers have an order", "without quotes"),
        ("TRUE < a", 0, "only numbers have an order", ""),
        ("a BETWEEN 'x' AND 'y'", 10, "only numbers have an order", ""),
        ("a BETWEEN 10 AND 0", 10, "nothing is between 10 and 0", "lower end first"),
        ("a NOT BETWEEN 1.5 AND 1", 14, "nothing is between 1.5 and 1", ""),
        ("a = 1 AND 'x' = 5", 14, "different types", ""),
        ("a IN ()", 6, "a text in 'quotes' was expected, ')' was found", ""),
        ("a IN (1, 2)", 6, "a text in 'quotes' was expected, '1' was found", ""),
        ("a IN 'x'", 5, "( was expected", ""),
        ("a IN ('x',)", 10, "a text in 'quotes' was expected", ""),
        ("a CONTAINS b", 11, "a text in 'quotes' was expected, 'b' was found", ""),
        ("a CONTAINS ''", 11, "empty text", "IS NOT NULL"),
        ("a > 100000000000000000000000", 4, "64 bits", "1e20"),
        ("a > 9223372036854775808", 4, "64 bits", ""),
        ("a > -9223372036854775809", 4, "64 bits", ""),
        ("a > 1e309", 4, "cannot hold", ""),
        ("a > 1e-999", 4, "cannot hold", ""),
        ("a = 007", 4, "leading zeros", "write it in decimal"),
        ("a = 00", 4, "leading zeros", ""),
        ("a = 0x1F", 4, "'0x1F' is not a number", "write it in decimal"),
        ("a > -0XffL", 5, "'0XffL' is not a number", "write it in decimal"),
        ("a = 0xg", 4, "'0xg' is not a number", "begins with a letter"),
        ("a = 0b1", 4, "'0b1' is not a number", ""),
        ("a = 1_000", 4, "'1_000' is not a number", ""),
        ("a = 1.5L", 4, "'1.5L' is not a number", ""),
        ("a = 1.5f", 4, "'1.5f' is not a number", ""),
        ("a = 1e", 4, "'1e' is not a number", ""),
        ("a = 1LL", 4, "'1LL' is not a number", ""),
        ("a = 5x", 4, "'5x' is not a number", "begins with a letter"),
        ("a = 1.2.3", 4, "'1.2.3' is not a number", ""),
        # What belongs to other languages is named.
        ("a != 1", 2, "'!=' was found", "Write <>"),
        ("a == 1", 2, "'==' was found", "single ="),
        ("a = 1 && b = 1", 6, "'&&' was found", "Write AND"),
        ("a = 1 || b = 1", 6, "'||' was found", "Write OR"),
        ("!a", 0, "'!' was found", "NOT"),
        ('a = "x"', 4, "'\"' was found", "single quotes"),
        ("`a` = 1", 0, "'`' was found", "without quotes"),
        ("a LIKE 'x%'", 2, "'LIKE' was found", "CONTAINS"),
        ("a = 1 AND b like 'x%'", 12, "'like' was found", "no LIKE"),
        ("a = b + 1", 6, "'+' was found", "no arithmetic"),
        ("a * 2 > 1", 2, "'*' was found", "no arithmetic"),
        ("-a > 1", 0, "a sign belongs before a number", "no arithmetic"),
        ("a = - - 1", 4, "a sign belongs before a number", ""),
        # RocketMQ's own tests of the parser (ParserTest).
        ("a and between 2 and 10", 0, "the property a alone", ""),
        (" a between 10 and 0", 11, "nothing is between", ""),
    ],
)
def test_an_error_says_where_and_why_and_what_to_write(text: str, position: int, why: str, hint: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        parse_sql(text)
    error = raised.value
    assert error.position == position
    assert why in error.facts["why"]
    assert hint in error.hint
    assert error.facts["expression"] == text
    assert (error.code, error.status) == ("INVALID_FILTER", 400)


def test_the_caret_stands_below_the_place() -> None:
    with pytest.raises(InvalidFilter) as raised:
        parse_sql("amount >\t100 AND zone LIKE 'eu%'")
    _, line, caret = raised.value.message.splitlines()
    assert line == "  amount > 100 AND zone LIKE 'eu%'"
    assert line[caret.index("^")] == "L"


def test_the_caret_stands_below_the_place_in_a_long_expression() -> None:
    text = (
        " AND ".join(f"property_{n % 9} = {n}" for n in range(40))
        + " AND x LIKE 'y' AND "
        + "z = 1 AND " * 40
    )
    with pytest.raises(InvalidFilter) as raised:
        parse_sql(text)
    _, line, caret = raised.value.message.splitlines()
    assert len(line) < 120
    assert line.startswith("  …")
    assert line.endswith("…")
    assert line[caret.index("^") :].startswith("LIKE")


@pytest.mark.parametrize("text", ["a = '\ud800'", "\udfff"])
def test_text_that_is_not_unicode_is_refused_with_a_valid_error(text: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        parse_sql(text)
    assert str(raised.value).encode()
    assert raised.value.facts["expression"].encode()


def test_the_size_of_an_expression_is_bounded_in_bytes() -> None:
    parse_sql("a = '" + "x" * (EXPRESSION_BYTES_MAX - 6) + "'")
    for text in ("a = '" + "x" * (EXPRESSION_BYTES_MAX - 5) + "'", "a = '" + "ü" * 2500 + "'"):
        with pytest.raises(InvalidFilter, match=f"{EXPRESSION_BYTES_MAX} are allowed") as raised:
            parse_sql(text)
        assert len(raised.value.message) < 400


@pytest.mark.parametrize(("before", "after"), [("(", ")"), ("NOT ", ""), ("NOT(", ")")])
def test_nesting_is_bounded(before: str, after: str) -> None:
    deepest = NESTING_MAX // (2 if before == "NOT(" else 1)
    parse_sql(before * deepest + "a = 1" + after * deepest)
    with pytest.raises(InvalidFilter, match=f"at most {NESTING_MAX} deep"):
        parse_sql(before * (deepest + 1) + "a = 1" + after * (deepest + 1))


def test_nesting_is_depth_and_not_a_count() -> None:
    parse_sql(" AND ".join(["(NOT a = 1)"] * (NESTING_MAX + 1)))


def test_the_number_of_conditions_is_bounded() -> None:
    parse_sql(" OR ".join(["a = 1"] * CONDITIONS_MAX))
    with pytest.raises(InvalidFilter, match=f"at most {CONDITIONS_MAX} conditions"):
        parse_sql(" OR ".join(["a = 1"] * (CONDITIONS_MAX + 1)))


def test_the_number_of_different_properties_is_bounded() -> None:
    names = [f"p{n}" for n in range(PROPERTIES_MAX)]
    parse_sql(" OR ".join(f"{name} = 1" for name in names * 3))
    with pytest.raises(InvalidFilter, match=f"at most {PROPERTIES_MAX} different properties"):
        parse_sql(" OR ".join(f"{name} = 1" for name in [*names, "another"]))


def test_the_length_of_a_list_is_bounded() -> None:
    parse_sql("a IN (" + ",".join(["''"] * LIST_MAX) + ")")
    with pytest.raises(InvalidFilter, match=f"at most {LIST_MAX} texts"):
        parse_sql("a IN (" + ",".join(["''"] * (LIST_MAX + 1)) + ")")


WORDS = st.sampled_from(
    [
        *(
            "a",
            "b.c",
            "AND",
            "or",
            "NOT",
            "BETWEEN",
            "IN",
            "IS",
            "NULL",
            "TRUE",
            "CONTAINS",
            "LIKE",
            "'x'",
            "''",
        ),
        *(
            "'",
            "(",
            ")",
            ",",
            "=",
            "<>",
            "<",
            ">=",
            "!=",
            "+",
            "-",
            "--",
            "/*",
            "*/",
            "1",
            "1.5",
            "1e9",
            "9" * 30,
        ),
        *("\n", " ", "\x00", "ü", "\ud800", "E", ".", "5.", "$"),
    ]
)
HOSTILE = (
    st.text(max_size=60)
    | st.lists(WORDS, max_size=40).map("".join)
    | st.lists(WORDS, max_size=40).map(" ".join)
)


@settings(max_examples=examples(1000))
@given(HOSTILE)
def test_hostile_text_is_parsed_or_refused_at_a_place_in_it(text: str) -> None:
    error = refusal(parse_sql, text)
    assert error is None or (0 <= error.position <= len(text) and str(error).encode())


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 4096, "NOT " * 1024, "'" * 4095, "'" * 4096, "/*" * 2048, "/*" + "*" * 4094, "a" * 4096),
        *("-" * 4096, "+" * 4096, "9" * 4096, "a = " + "9" * 4000 + ".", "a=1e" + "9" * 4000, "." * 4096),
        *("a=1 OR " * 585, "a BETWEEN " * 400, "a IN(" + "''," * 1300, "\x00" * 4096, "a " * 2048),
    ],
)
def test_a_hostile_text_is_refused_without_deep_recursion(text: str) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_stack_depth() + 350)
    try:
        with pytest.raises(InvalidFilter):
            parse_sql(text)
    finally:
        sys.setrecursionlimit(limit)


def _stack_depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back:
        frame, depth = frame.f_back, depth + 1
    return depth
