"""Evaluates SQL expressions on whole batches, in three-valued logic.

An expression is compiled once, into functions from the columns of a batch to a boolean column in which null
means UNKNOWN. Arrow's Kleene functions combine such columns:

    AND      FALSE if one side is FALSE, else UNKNOWN if one is UNKNOWN
    OR       TRUE if one side is TRUE, else UNKNOWN if one is UNKNOWN
    NOT      UNKNOWN of UNKNOWN

A message is wanted only if the expression is TRUE of it. A comparison is UNKNOWN if a property is missing, or
if its value does not have the type of the other side: `x > 5` is UNKNOWN of `x = 'abc'`. RocketMQ raises an
error there (ComparisonExpression) and drops the message. `docs/filters.md` lists all such differences.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
from rocketq_broker.filters.columns import TAGS, Columns
from rocketq_broker.filters.numerics import Numbers
from rocketq_broker.filters.tags import tag_hashes

#: TRUE, FALSE or null for each message, or one for all of them.
_Truths: TypeAlias = pa.BooleanArray | pa.BooleanScalar
_Evaluation: TypeAlias = Callable[[Columns], _Truths]

_ON_COLUMNS: Final[dict[Comparison, Callable[[Any, Any], _Truths]]] = {
    Comparison.EQUAL: pc.equal,
    Comparison.NOT_EQUAL: pc.not_equal,
    Comparison.GREATER: pc.greater,
    Comparison.GREATER_EQUAL: pc.greater_equal,
    Comparison.LESS: pc.less,
    Comparison.LESS_EQUAL: pc.less_equal,
}
_ON_VALUES: Final[dict[Comparison, Callable[[Any, Any], bool]]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_EQUAL: operator.ge,
    Comparison.LESS: operator.lt,
    Comparison.LESS_EQUAL: operator.le,
}
_MATCHES: Final[dict[MatchKind, Callable[[pa.StringArray | pa.StringScalar, str], _Truths]]] = {
    MatchKind.CONTAINS: pc.match_substring,
    MatchKind.STARTSWITH: pc.starts_with,
    MatchKind.ENDSWITH: pc.ends_with,
}


class SqlFilter:
    """Wants the messages of which a SQL expression is TRUE (RocketMQ: ExpressionType.SQL92)."""

    __slots__ = ("_evaluate", "condition", "hashes")

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self._evaluate = _compiled(condition)
        tags = _possible_tags(condition)
        self.hashes: npt.NDArray[np.uint64] | None = None if tags is None else tag_hashes(tags)

    def __repr__(self) -> str:
        return f"SqlFilter({self.condition!r})"

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each message whether the expression is TRUE of it."""
        truths = self._evaluate(Columns(batch))
        if isinstance(truths, pa.Scalar):
            return np.full(batch.num_rows, truths.as_py() is True)
        mask: npt.NDArray[np.bool_] = pc.fill_null(truths, False).to_numpy(zero_copy_only=False)
        return mask


# --- compiling ----------------------------------------------------------------------


def _compiled(condition: Condition) -> _Evaluation:
    match condition:
        case And(terms):
            return _joined(pc.and_kleene, terms)
        case Or(terms):
            return _joined(pc.or_kleene, terms)
        case Not(term):
            return _inverted(_compiled(term))
        case Boolean(value):
            truth = pa.scalar(value)
            return lambda columns: truth
        case IsNull(Property(name), negated):
            return _is_null(name, negated)
        case In(Property(name), values, negated):
            return _negatable(_in(name, values), negated)
        case Match(kind, subject, text, negated):
            return _negatable(_match(kind, subject, text), negated)
        case Between(operand, low, high, negated):
            above = _compare(Comparison.GREATER_EQUAL, operand, low)
            below = _compare(Comparison.LESS_EQUAL, operand, high)
            return _negatable(lambda columns: pc.and_kleene(above(columns), below(columns)), negated)
        case Compare(comparison, left, right):
            return _compare(comparison, left, right)


def _joined(join: Callable[[Any, Any], _Truths], terms: tuple[Condition, ...]) -> _Evaluation:
    evaluations = [_compiled(term) for term in terms]
    return lambda columns: reduce(join, (evaluate(columns) for evaluate in evaluations))


def _inverted(evaluate: _Evaluation) -> _Evaluation:
    return lambda columns: pc.invert(evaluate(columns))


def _negatable(evaluate: _Evaluation, negated: bool) -> _Evaluation:
    return _inverted(evaluate) if negated else evaluate


def _is_null(name: str, negated: bool) -> _Evaluation:
    if negated:
        return lambda columns: columns.texts(name).is_valid()
    return lambda columns: columns.texts(name).is_null()


def _in(name: str, values: tuple[str, ...]) -> _Evaluation:
    listed = pa.array(values, pa.string())

    def evaluate(columns: Columns) -> _Truths:
        texts = columns.texts(name)
        found = pc.is_in(texts, value_set=listed)
        # Arrow finds a null in no list; here it is unknown whether it is in it.
        return pc.if_else(texts.is_valid(), found, pa.scalar(None, pa.bool_())) if texts.null_count else found

    return evaluate


def _match(kind: MatchKind, subject: Property | Text, text: str) -> _Evaluation:
    matches = _MATCHES[kind]
    if isinstance(subject, Text):
        found = matches(pa.scalar(subject.value, pa.string()), text)
        return lambda columns: found
    name = subject.name
    return lambda columns: matches(columns.texts(name), text)


# --- comparisons --------------------------------------------------------------------


def _compare(comparison: Comparison, left: Operand, right: Operand) -> _Evaluation:
    compare = _ON_COLUMNS[comparison]
    match left, right:
        case Property(name), Property(other):
            if comparison.is_order:
                return lambda columns: _ordered(compare, columns.numbers(name), columns.numbers(other))
            return lambda columns: compare(columns.texts(name), columns.texts(other))
        case Property(name), Text(text):
            wanted = pa.scalar(text, pa.string())
            return lambda columns: compare(columns.texts(name), wanted)
        case Property(name), Boolean(truth):
            wanted = pa.scalar(truth)
            return lambda columns: compare(columns.truths(name), wanted)
        case Property(name), Number(number):
            literal = _literal(number)
            return lambda columns: _ordered(compare, columns.numbers(name), literal)
        case _, Property():
            return _compare(comparison.mirrored, right, left)
        case _, _:
            known = pa.scalar(_of_literals(comparison, left, right))
            return lambda columns: known


def _of_literals(comparison: Comparison, left: Operand, right: Operand) -> bool:
    assert not isinstance(left, Property)
    assert not isinstance(right, Property)
    values = left.value, right.value
    if isinstance(left.value, float) or isinstance(right.value, float):
        values = float(left.value), float(right.value)
    return _ON_VALUES[comparison](*values)


def _literal(number: int | float) -> Numbers:
    """Return a number literal as scalars, which Arrow compares with every row."""
    integer = pa.scalar(number, pa.int64()) if isinstance(number, int) else None
    return Numbers(pa.scalar(float(number)), integer)


def _ordered(compare: Callable[[Any, Any], _Truths], left: Numbers, right: Numbers) -> _Truths:
    """Compare numbers as doubles; compare two integers exactly if one of them may be beyond 2**53."""
    by_doubles = compare(left.doubles, right.doubles)
    if left.integers is None or right.integers is None:
        return by_doubles
    return pc.coalesce(compare(left.integers, right.integers), by_doubles)


# --- the tags that an expression can match --------------------------------------------------


def _possible_tags(condition: Condition) -> frozenset[str] | None:
    """Return tags of which every wanted message has one; None if it may have any, or none.

    It may return more than are possible, never fewer: the mask decides.
    """
    match condition:
        case Compare(Comparison.EQUAL, Property(name), Text(text)) if name == TAGS:
            return frozenset({text})
        case Compare(Comparison.EQUAL, Text(text), Property(name)) if name == TAGS:
            return frozenset({text})
        case In(Property(name), values, False) if name == TAGS:
            return frozenset(values)
        case And(terms):
            known = [tags for tags in map(_possible_tags, terms) if tags is not None]
            return frozenset.intersection(*known) if known else None
        case Or(terms):
            each = [_possible_tags(term) for term in terms]
            if any(tags is None for tags in each):
                return None
            return frozenset().union(*(tags for tags in each if tags is not None))
        case Boolean(False):
            return frozenset()
    return None
