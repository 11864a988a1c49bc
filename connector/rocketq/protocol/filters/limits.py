"""The limits of filter expressions: they bound what the expression of any caller can cost."""

from __future__ import annotations

from typing import Final

from rocketq.errors import InvalidFilter

#: A tag or SQL expression in UTF-8.
EXPRESSION_BYTES_MAX: Final = 4096
#: Nested parentheses and NOTs of a SQL expression.
NESTING_MAX: Final = 64
#: Different properties of one SQL expression; each costs a pass over all properties of a batch.
PROPERTIES_MAX: Final = 32
#: Conditions of one SQL expression; each costs a pass over a column of a batch.
CONDITIONS_MAX: Final = 256
#: Texts in one IN list.
LIST_MAX: Final = 1024
#: Expressions whose parsed and compiled form is kept.
CACHED_MAX: Final = 256


def check_text(expression: str) -> None:
    """Raise InvalidFilter if the expression is too long, or cannot be encoded as UTF-8."""
    try:
        size = len(expression.encode())
    except UnicodeEncodeError as error:
        raise InvalidFilter(expression, error.start, "this character is half of a pair") from None
    if size > EXPRESSION_BYTES_MAX:
        # With the whole expression the error would be as large as the expression.
        raise InvalidFilter(
            expression[:200],
            0,
            f"it has {size} bytes, {EXPRESSION_BYTES_MAX} are allowed (only its beginning is shown)",
            hint="Shorten it: a long list of values is better stored as one property of the messages.",
        )
