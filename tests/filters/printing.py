"""From a condition back to text: the parser's opposite."""

from __future__ import annotations

from collections.abc import Iterator

from rocketq.protocol.filters.sql_ast import (
    And,
    Between,
    Boolean,
    Compare,
    Condition,
    In,
    IsNull,
    Match,
    Node,
    Not,
    Number,
    Or,
    Property,
    Text,
)


def tokens(node: Node) -> Iterator[str]:
    """Yield the tokens of an expression that says `node`, with no more parentheses than needed."""
    match node:
        case Property(name):
            yield name
        case Text(value):
            yield "'" + value.replace("'", "''") + "'"
        case Number(value):
            yield repr(value)
        case Boolean(value):
            yield "TRUE" if value else "FALSE"
        case Compare(comparison, left, right):
            yield from (*tokens(left), comparison.value, *tokens(right))
        case Between(operand, low, high, negated):
            yield from (*tokens(operand), *_not(negated), "BETWEEN", *tokens(low), "AND", *tokens(high))
        case In(subject, values, negated):
            yield from (*tokens(subject), *_not(negated), "IN", "(")
            for at, value in enumerate(values):
                yield from ([","] if at else [])
                yield from tokens(Text(value))
            yield ")"
        case IsNull(subject, negated):
            yield from (*tokens(subject), "IS", *_not(negated), "NULL")
        case Match(kind, subject, text, negated):
            yield from (*tokens(subject), *_not(negated), kind.value, *tokens(Text(text)))
        case Not(term):
            yield from ("NOT", *_grouped(term, isinstance(term, And | Or)))
        case And(terms):
            yield from _separated("AND", [_grouped(term, isinstance(term, And | Or)) for term in terms])
        case Or(terms):
            yield from _separated("OR", [_grouped(term, isinstance(term, Or)) for term in terms])


def _not(negated: bool) -> list[str]:
    return ["NOT"] if negated else []


def _grouped(condition: Condition, needed: bool) -> Iterator[str]:
    yield from (["("] if needed else [])
    yield from tokens(condition)
    yield from ([")"] if needed else [])


def _separated(keyword: str, parts: list[Iterator[str]]) -> Iterator[str]:
    for at, part in enumerate(parts):
        yield from ([keyword] if at else [])
        yield from part
