"""SQL expressions over the properties of a message (RocketMQ: SelectorParser).

    or         and { OR and }
    and        not { AND not }
    not        NOT not | condition
    condition  operand [ comparison operand
                       | IS [NOT] NULL
                       | [NOT] BETWEEN operand AND operand
                       | [NOT] IN ( text { , text } )
                       | [NOT] CONTAINS|STARTSWITH|ENDSWITH text ]
    operand    property | text | [+|-] number | TRUE | FALSE | ( or )

A recursive descent parser that looks one token ahead. Parentheses may contain an operand or a condition, so
the parser checks which of the two it is where it is used. There it also checks RocketMQ's rules for types:
only numbers have an order, a list contains texts, the lower end of BETWEEN comes first, and CONTAINS,
STARTSWITH and ENDSWITH search a property or a text literal. RocketMQ's grammar accepts some expressions that
nobody can mean (a property alone as a condition, a comparison of a comparison). This parser refuses them.
NOT binds as in SQL: `NOT a = 1` is `NOT (a = 1)`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

from rocketq.errors import InvalidFilter
from rocketq.protocol.filters.limits import (
    CACHED_MAX,
    CONDITIONS_MAX,
    LIST_MAX,
    NESTING_MAX,
    PROPERTIES_MAX,
    check_text,
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
    Node,
    Not,
    Number,
    Operand,
    Or,
    Property,
    Text,
)
from rocketq.protocol.filters.sql_lexer import Lexer, Token, TokenKind

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1

_ARITHMETIC: Final = "There is no arithmetic: compute the number, and store it as a property."
#: Symbols and words of other languages, and what to write instead.
_ADVICE: Final = {
    "!=": "Write <> for 'is not equal'.",
    "!": "Write NOT, or <> for 'is not equal'.",
    "==": "Write a single =.",
    "&&": "Write AND.",
    "&": "Write AND.",
    "||": "Write OR; there is no joining of texts.",
    "|": "Write OR.",
    '"': "A text stands in single quotes: 'text'.",
    "`": "The name of a property stands alone, without quotes.",
    "LIKE": "There is no LIKE: write CONTAINS 'x', STARTSWITH 'x' or ENDSWITH 'x'.",
    "ILIKE": "There is no ILIKE: write CONTAINS 'x', STARTSWITH 'x' or ENDSWITH 'x'.",
    "RLIKE": "There are no patterns: write CONTAINS 'x', STARTSWITH 'x' or ENDSWITH 'x'.",
    "REGEXP": "There are no patterns: write CONTAINS 'x', STARTSWITH 'x' or ENDSWITH 'x'.",
    **dict.fromkeys("+-*/%", _ARITHMETIC),
}

_COMPARISONS: Final = frozenset(Comparison)
_MATCH_KINDS: Final = frozenset(MatchKind)
#: What may follow an operand that no operator follows.
_CLOSING: Final = frozenset({"", "AND", "OR", ")"})


class _Part(NamedTuple):
    """A part of the expression, and the position where it begins."""

    node: Node
    at: int


@lru_cache(maxsize=CACHED_MAX)
def parse_sql(expression: str) -> Condition:
    """Return the syntax tree of a SQL expression; raise InvalidFilter if it is not valid."""
    check_text(expression)
    return _Parser(expression).whole()


class _Parser:
    """Parses one expression; `_token` is the next token, not yet used."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._lexer = Lexer(expression)
        self._token = self._lexer.next()
        self._nesting = 0
        self._conditions = 0
        self._properties: set[str] = set()

    def whole(self) -> Condition:
        if self._ended():
            raise self._refusal(
                0, "it is empty", "Write a condition, such as amount > 100, or leave the filter out."
            )
        condition = self._condition_of(self._or())
        if not self._ended():
            raise self._surprise("AND, OR or the end")
        return condition

    # --- conditions ---------------------------------------------------------------

    def _or(self) -> _Part:
        first = self._and()
        if not self._is("OR"):
            return first
        terms = [self._condition_of(first)]
        while self._took("OR"):
            terms.append(self._condition_of(self._and()))
        return _Part(Or(tuple(terms)), first.at)

    def _and(self) -> _Part:
        first = self._not()
        if not self._is("AND"):
            return first
        terms = [self._condition_of(first)]
        while self._took("AND"):
            terms.append(self._condition_of(self._not()))
        return _Part(And(tuple(terms)), first.at)

    def _not(self) -> _Part:
        at = self._token.at
        if not self._took("NOT"):
            return self._predicate()
        self._deeper(at)
        term = self._condition_of(self._not())
        self._nesting -= 1
        return _Part(Not(term), at)

    def _predicate(self) -> _Part:
        left = self._operand()
        symbol = self._token
        if symbol.kind is TokenKind.SYMBOL and symbol.text in _COMPARISONS:
            self._advance()
            return self._counted(self._comparison(left, Comparison(symbol.text), symbol), left)
        if self._took("IS"):
            negated = self._took("NOT")
            self._expect("NULL")
            return self._counted(IsNull(self._is_property(left, "IS NULL"), negated), left)
        negated = self._took("NOT")
        if self._took("BETWEEN"):
            return self._counted(self._between(left, negated), left)
        if self._took("IN"):
            subject = self._is_property(left, "IN")
            return self._counted(In(subject, self._list(), negated), left)
        kind = self._token
        if kind.kind is TokenKind.KEYWORD and kind.text in _MATCH_KINDS:
            self._advance()
            searched = self._is_text(left, kind.text)
            return self._counted(Match(MatchKind(kind.text), searched, self._search_text(), negated), left)
        if negated:
            raise self._surprise("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
        if not isinstance(left.node, Condition) and self._token.text not in _CLOSING:
            raise self._surprise("a comparison")
        return left

    def _comparison(self, left: _Part, comparison: Comparison, symbol: Token) -> Compare:
        right = self._operand()
        if self._token.kind is TokenKind.SYMBOL and self._token.text in _COMPARISONS:
            raise self._refusal(
                self._token.at, "a comparison has two sides", "Join two comparisons by AND: a < b AND b < c."
            )
        if comparison.is_order:
            return Compare(comparison, self._ordered(left, comparison), self._ordered(right, comparison))
        sides = self._value_of(left), self._value_of(right)
        if len({type(side) for side in sides} - {Property}) > 1:
            raise self._refusal(symbol.at, "the two sides are of different types, so they are never equal")
        return Compare(comparison, *sides)

    def _between(self, operand: _Part, negated: bool) -> Between:
        low = self._operand()
        self._expect("AND")
        high = self._operand()
        value, least, most = (self._ordered(part, "BETWEEN") for part in (operand, low, high))
        if isinstance(least, Number) and isinstance(most, Number) and least.value > most.value:
            raise self._refusal(
                low.at,
                f"nothing is between {least.value} and {most.value}",
                "Write the lower end first: BETWEEN low AND high.",
            )
        return Between(value, least, most, negated)

    def _list(self) -> tuple[str, ...]:
        self._expect("(")
        values = [self._text("a text in 'quotes'")]
        while self._took(","):
            at = self._token.at
            values.append(self._text("a text in 'quotes'"))
            if len(values) > LIST_MAX:
                raise self._refusal(at, f"a list has at most {LIST_MAX} texts")
        self._expect(")", "',' or ')'")
        return tuple(values)

    def _search_text(self) -> str:
        at = self._token.at
        text = self._text("a text in 'quotes'")
        if not text:
            raise self._refusal(
                at, "every value has the empty text in it", "Write IS NOT NULL if any value is welcome."
            )
        return text

    def _counted(self, condition: Condition, first: _Part) -> _Part:
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            raise self._refusal(
                first.at,
                f"an expression has at most {CONDITIONS_MAX} conditions",
                "Compare with many texts by one IN ('a', 'b', …).",
            )
        return _Part(condition, first.at)

    # --- operands -----------------------------------------------------------------

    def _operand(self) -> _Part:
        token = self._token
        if self._took("("):
            self._deeper(token.at)
            inner = self._or()
            self._expect(")", "AND, OR or ')'")
            self._nesting -= 1
            return inner
        if token.kind is TokenKind.NAME:
            self._advance()
            self._properties.add(token.text)
            if len(self._properties) > PROPERTIES_MAX:
                raise self._refusal(
                    token.at, f"an expression has at most {PROPERTIES_MAX} different properties"
                )
            return _Part(Property(token.text), token.at)
        if token.kind is TokenKind.TEXT:
            return _Part(Text(self._text("a text")), token.at)
        if token.kind is TokenKind.KEYWORD and token.text in ("TRUE", "FALSE"):
            self._advance()
            return _Part(Boolean(token.text == "TRUE"), token.at)
        if self._is("NULL"):
            raise self._refusal(
                token.at, "nothing can be compared with NULL", "Write x IS NULL, or x IS NOT NULL."
            )
        return self._number()

    def _number(self) -> _Part:
        first = self._token
        signed = self._took("-") or self._took("+")
        token = self._token
        if token.kind not in (TokenKind.INTEGER, TokenKind.DECIMAL):
            if signed:
                raise self._refusal(first.at, "a sign belongs before a number", _ARITHMETIC)
            raise self._surprise("a property or a value")
        self._advance()
        sign = -1 if first.text == "-" else 1
        if token.kind is TokenKind.INTEGER:
            whole = sign * int(token.text.rstrip("lL"))
            if not _INT64_MIN <= whole <= _INT64_MAX:
                raise self._refusal(
                    first.at,
                    "an integer has 64 bits",
                    "Write it with an exponent (1e20) to compare as a floating point number.",
                )
            return _Part(Number(whole), first.at)
        value = float(token.text)
        digits = token.text.upper().partition("E")[0]
        if math.isinf(value) or (value == 0 and digits.strip("0.")):
            raise self._refusal(first.at, "a floating point number cannot hold this one")
        return _Part(Number(sign * value), first.at)

    def _text(self, expected: str) -> str:
        token = self._token
        if token.kind is not TokenKind.TEXT:
            raise self._surprise(expected)
        self._advance()
        return token.text[1:-1].replace("''", "'")

    # --- what a piece stands for ----------------------------------------------------

    def _condition_of(self, part: _Part) -> Condition:
        node = part.node
        if isinstance(node, Property):
            raise self._refusal(
                part.at,
                f"the property {node.name} alone is no condition",
                f"Write {node.name} = TRUE, or {node.name} IS NOT NULL.",
            )
        if isinstance(node, (Text, Number)):
            raise self._refusal(part.at, "a value alone is no condition", "Compare it with a property.")
        return node

    def _value_of(self, part: _Part) -> Operand:
        if isinstance(part.node, (Property, Text, Number, Boolean)):
            return part.node
        raise self._refusal(
            part.at, "a condition has no value to compare", "Join conditions by AND, OR and NOT."
        )

    def _is_property(self, part: _Part, operator: str) -> Property:
        if isinstance(part.node, Property):
            return part.node
        raise self._refusal(part.at, f"{operator} is said of a property")

    def _is_text(self, part: _Part, operator: str) -> Property | Text:
        if isinstance(part.node, (Property, Text)):
            return part.node
        raise self._refusal(
            part.at, f"{operator} is said of a property or a text", "Write a text in 'quotes'."
        )

    def _ordered(self, part: _Part, operator: str) -> Property | Number:
        value = self._value_of(part)
        if isinstance(value, (Property, Number)):
            return value
        raise self._refusal(
            part.at,
            f"only numbers have an order, so {operator} takes none but properties and numbers",
            "Write a number without quotes.",
        )

    # --- tokens -------------------------------------------------------------------

    def _advance(self) -> None:
        self._token = self._lexer.next()

    def _ended(self) -> bool:
        return self._token.kind is TokenKind.END

    def _is(self, text: str) -> bool:
        return self._token.kind in (TokenKind.KEYWORD, TokenKind.SYMBOL) and self._token.text == text

    def _took(self, text: str) -> bool:
        taken = self._is(text)
        if taken:
            self._advance()
        return taken

    def _expect(self, text: str, expected: str = "") -> None:
        if not self._took(text):
            raise self._surprise(expected or text)

    def _deeper(self, at: int) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise self._refusal(at, f"parentheses and NOTs go at most {NESTING_MAX} deep")

    def _found(self) -> str:
        token = self._token
        return token.kind.value if self._ended() else f"{token.text!r:.40}"

    def _surprise(self, expected: str) -> InvalidFilter:
        advice = _ADVICE.get(self._token.text.upper(), "")
        return self._refusal(self._token.at, f"{expected} was expected, {self._found()} was found", advice)

    def _refusal(self, at: int, why: str, hint: str = "") -> InvalidFilter:
        return InvalidFilter(self._expression, at, why, hint)
