"""The syntax tree of a SQL expression: frozen values that hash and compare.

    Operand    Property | Text | Number | Boolean
    Condition  Compare | Between | In | IsNull | Match | Not | And | Or | Boolean

A condition is TRUE, FALSE or UNKNOWN of a message. A consumer gets only messages of which it is TRUE. Nodes
have no positions in the text, so two expressions that differ in white space or parentheses alone are equal.
Operators with a negated form (`NOT IN`) have a field `negated`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Comparison(StrEnum):
    """An operator between two operands."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    GREATER = ">"
    GREATER_EQUAL = ">="
    LESS = "<"
    LESS_EQUAL = "<="

    @property
    def is_order(self) -> bool:
        return self not in (Comparison.EQUAL, Comparison.NOT_EQUAL)

    @property
    def mirrored(self) -> Comparison:
        """The operator that says the same with the operands exchanged."""
        return _MIRRORED.get(self, self)


_MIRRORED = {
    Comparison.GREATER: Comparison.LESS,
    Comparison.GREATER_EQUAL: Comparison.LESS_EQUAL,
    Comparison.LESS: Comparison.GREATER,
    Comparison.LESS_EQUAL: Comparison.GREATER_EQUAL,
}


class MatchKind(StrEnum):
    """Where in another text the text that is searched for must be."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message, by its name; TAGS is its tag and KEYS are its keys."""

    name: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number literal: an int of 64 bits, or a finite float if it has a point or an exponent."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Boolean:
    """TRUE or FALSE, as an operand or as a condition."""

    value: bool


Operand: TypeAlias = Property | Text | Number | Boolean


@dataclass(frozen=True, slots=True)
class Compare:
    """`amount >= 100`."""

    comparison: Comparison
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Between:
    """`amount [NOT] BETWEEN 1 AND 10`, both ends included."""

    operand: Property | Number
    low: Property | Number
    high: Property | Number
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In:
    """`region [NOT] IN ('eu', 'us')`."""

    subject: Property
    values: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """`region IS [NOT] NULL`: never UNKNOWN."""

    subject: Property
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """`region [NOT] STARTSWITH 'eu-'`; `text`, which is searched for in the subject, is never empty."""

    kind: MatchKind
    subject: Property | Text
    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    """NOT of a condition; NOT of UNKNOWN is UNKNOWN."""

    term: Condition


@dataclass(frozen=True, slots=True)
class And:
    """Two or more conditions, all of which must hold."""

    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more conditions, one of which must hold."""

    terms: tuple[Condition, ...]


Condition: TypeAlias = Compare | Between | In | IsNull | Match | Not | And | Or | Boolean
Node: TypeAlias = Operand | Condition
