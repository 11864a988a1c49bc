"""A second, plain reading of docs/filters.md: one message at a time, None for UNKNOWN."""

from __future__ import annotations

import operator
import re
from typing import Any

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

Message = dict[str, Any]

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
INTEGER = re.compile(r"[+-]?[0-9]+\Z")
COMPARISONS = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_EQUAL: operator.ge,
    Comparison.LESS: operator.lt,
    Comparison.LESS_EQUAL: operator.le,
}


def text_of(message: Message, name: str) -> str | None:
    """The value of a property, or None."""
    value: str | None = dict(message["properties"] or ()).get(name)
    if name == "TAGS":
        value = message["tag"]
    if name == "KEYS":
        keys = [*([message["key"]] if message["key"] is not None else [])]
        try:
            texts = [key.decode() for key in keys]
        except UnicodeDecodeError:
            texts = []
        texts += [] if value is None else [value]
        return " ".join(texts) if texts else None
    return value


def number_of(text: str | None) -> int | float | None:
    """The number that a text is: an int if it is one of 64 bits, else a float, or None."""
    if text is None or not NUMBER.match(text):
        return None
    if INTEGER.match(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    return float(text)


def truth_of(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get(text.lower() if text is not None else "")


def compared(comparison: Comparison, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    return bool(COMPARISONS[comparison](left, right))


def compare(message: Message, comparison: Comparison, left: Operand, right: Operand) -> bool | None:
    sides = (left, right)
    if comparison.is_order or any(isinstance(side, Number) for side in sides):
        meaning: Any = number_of
    elif any(isinstance(side, Boolean) for side in sides):
        meaning = truth_of
    else:
        meaning = str
    values = []
    for side in sides:
        if isinstance(side, Property):
            text = text_of(message, side.name)
            values.append(None if text is None else meaning(text))
        else:
            values.append(side.value)
    return compared(comparison, *values)


def negate(truth: bool | None, negated: bool = True) -> bool | None:
    return truth if truth is None or not negated else not truth


def all_of(truths: list[bool | None]) -> bool | None:
    return False if False in truths else None if None in truths else True


def evaluate(message: Message, condition: Condition) -> bool | None:
    match condition:
        case Boolean(value):
            return value
        case And(terms):
            return all_of([evaluate(message, term) for term in terms])
        case Or(terms):
            return negate(all_of([negate(evaluate(message, term)) for term in terms]))
        case Not(term):
            return negate(evaluate(message, term))
        case IsNull(subject, negated):
            return (text_of(message, subject.name) is None) != negated
        case Compare(comparison, left, right):
            return compare(message, comparison, left, right)
        case Between(operand, low, high, negated):
            low_end = compare(message, Comparison.GREATER_EQUAL, operand, low)
            high_end = compare(message, Comparison.LESS_EQUAL, operand, high)
            return negate(all_of([low_end, high_end]), negated)
        case In(subject, values, negated):
            text = text_of(message, subject.name)
            return None if text is None else negate(text in values, negated)
        case Match(kind, subject, wanted, negated):
            text = subject.value if isinstance(subject, Text) else text_of(message, subject.name)
            if text is None:
                return None
            found = {
                MatchKind.CONTAINS: wanted in text,
                MatchKind.STARTSWITH: text.startswith(wanted),
                MatchKind.ENDSWITH: text.endswith(wanted),
            }
            return negate(found[kind], negated)
