"""Splits the text of a SQL expression into tokens, one at a time.

    name     [A-Za-z_$][A-Za-z0-9_$.]*       case matters
    keyword  AND OR NOT BETWEEN IN IS NULL TRUE FALSE CONTAINS STARTSWITH ENDSWITH, in any case
    integer  123, 123L                       decimal only: no leading zeros, no 0x
    decimal  1.5  .5  5.  1e9  1.5E-3
    text     'it''s'                         a quote inside is doubled
    symbol   = <> > >= < <= ( ) , + -        and symbols of other languages, so that an error can name them
    skipped  white space, -- to the end of the line, /* … */

The parser asks for each token when it needs it, so an error is about the first mistake. No pattern is
ambiguous, so matching takes linear time for every text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketq.errors import InvalidFilter

KEYWORDS: Final = frozenset(
    {
        *("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)

_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*|/\*.*?\*/)+", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""
      (?P<name>    [A-Za-z_$][A-Za-z0-9_$.]* )
    | (?P<decimal> (?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )?  |  [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> [0-9]+[lL]? )
    | (?P<text>    '[^']*(?:''[^']*)*' )
    | (?P<symbol>  <> | >= | <= | != | == | && | \|\| | [=<>(),+\-*/%!&|^~"`\[\]{}?:;@\#\\] )
    """,
    re.VERBOSE,
)
_NUMBER_GOES_ON: Final = re.compile(r"[A-Za-z0-9_$.]+")
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9A-Fa-f]+[lL]?\Z")
_DECIMAL_ONLY: Final = "There are no octal and no hexadecimal numbers: write it in decimal."


class TokenKind(Enum):
    """The kind of a token; the value is its name in errors."""

    NAME = "a property"
    KEYWORD = "a keyword"
    INTEGER = "an integer"
    DECIMAL = "a decimal number"
    TEXT = "a text"
    SYMBOL = "a symbol"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is as written (keywords in capitals); `at` is the position of its first character, from 0."""

    kind: TokenKind
    text: str
    at: int


class Lexer:
    """Reads the tokens of one expression; after the last token it returns END again and again."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._at = 0

    def next(self) -> Token:
        """Read the next token; raise InvalidFilter if the text that follows is no token."""
        skipped = _SKIPPED.match(self._expression, self._at)
        at = skipped.end() if skipped else self._at
        if at == len(self._expression):
            return Token(TokenKind.END, "", at)
        found = _TOKEN.match(self._expression, at)
        if found is None or self._expression.startswith("/*", at):
            raise self._no_token(at)
        self._at = found.end()
        kind, text = TokenKind[(found.lastgroup or "").upper()], found.group()
        if kind is TokenKind.NAME and text.upper() in KEYWORDS:
            return Token(TokenKind.KEYWORD, text.upper(), at)
        if kind in (TokenKind.INTEGER, TokenKind.DECIMAL):
            self._check_number(kind, text, at)
        return Token(kind, text, at)

    def _check_number(self, kind: TokenKind, text: str, at: int) -> None:
        more = _NUMBER_GOES_ON.match(self._expression, self._at)
        if more:
            raise InvalidFilter(
                self._expression,
                at,
                f"{text + more.group()!r:.60} is not a number",
                hint=_DECIMAL_ONLY
                if _HEXADECIMAL.match(text + more.group())
                else "The name of a property begins with a letter, _ or $; a text stands in 'quotes'.",
            )
        if kind is TokenKind.INTEGER and len(text.rstrip("lL")) > 1 and text.startswith("0"):
            raise InvalidFilter(self._expression, at, "an integer has no leading zeros", hint=_DECIMAL_ONLY)

    def _no_token(self, at: int) -> InvalidFilter:
        rest = self._expression[at:]
        if rest.startswith("'"):
            return InvalidFilter(
                self._expression,
                at,
                "the text that begins here has no end",
                hint="Close it with ', and double a ' that belongs to it.",
            )
        if rest.startswith("/*"):
            return InvalidFilter(
                self._expression, at, "the comment that begins here has no end", hint="Close it with */."
            )
        return InvalidFilter(
            self._expression,
            at,
            f"the character {rest[0]!r} has no meaning here",
            hint="A property's name has only A-Z a-z 0-9 _ $ and a dot; a text stands in 'quotes'.",
        )
