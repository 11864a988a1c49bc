"""Tag expressions such as `paid || refunded` (RocketMQ: FilterAPI), and the rules for tags.

A message matches if the expression names its tag. `*` and the empty expression match every message, also
those without a tag. White space around a tag is ignored. RocketMQ skips an empty place (`A || || B`). Here it
is an error, because most often a tag is missing there.

A tag is any text that an expression can name: 1 to 255 bytes in UTF-8, without white space, without `|`, and
not `*` alone. Messages with another tag are refused, because no consumer could ask for them. (RocketMQ stores
any tag.) White space is defined by `str.isspace`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rocketq.errors import InvalidFilter
from rocketq.model import TAG_BYTES_MAX
from rocketq.protocol.filters.limits import CACHED_MAX, check_text

EVERYTHING: Final = "*"
_SEPARATOR: Final = "||"
#: For `re` and for Arrow's RE2 alike, whose \s are not the same.
NOT_IN_A_TAG: Final = "[|\t\n\v\f\r\x1c-\x1f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_NOT_IN_A_TAG: Final = re.compile(NOT_IN_A_TAG)


@lru_cache(maxsize=CACHED_MAX)
def parse_tags(expression: str) -> tuple[str, ...]:
    """Return the tags that match, each once and in order; none means that every message matches.

    Raise InvalidFilter if it is not tags separated by `||`.
    """
    check_text(expression)
    if expression.strip() in ("", EVERYTHING):
        return ()
    tags: dict[str, None] = {}
    at = 0
    for part in expression.split(_SEPARATOR):
        tag = part.strip()
        _check_tag(expression, at + len(part) - len(part.lstrip()), tag)
        tags[tag] = None
        at += len(part) + len(_SEPARATOR)
    return tuple(tags)


def why_no_tag(tag: str) -> str | None:
    """Return what is wrong with a tag, its length apart; None if it is one."""
    if tag.isalnum():
        # Nearly every tag; this is ten times as quick as a search.
        return None
    if not tag:
        return "is empty"
    if tag == EVERYTHING:
        return "stands for every tag"
    wrong = _NOT_IN_A_TAG.search(tag)
    if wrong is None:
        return None
    return "has a '|'" if wrong.group() == "|" else "has white space"


def _check_tag(expression: str, at: int, tag: str) -> None:
    """Raise InvalidFilter if what begins at `at` is not a tag."""
    if not tag:
        raise InvalidFilter(
            expression, min(at, len(expression)), "a tag is missing", hint="Write a tag on each side of ||."
        )
    if tag == EVERYTHING:
        raise InvalidFilter(expression, at, "* stands for every tag", hint="Write * alone, or only tags.")
    wrong = _NOT_IN_A_TAG.search(tag)
    if wrong:
        what = "'|'" if wrong.group() == "|" else "white space"
        raise InvalidFilter(
            expression, at + wrong.start(), f"a tag has no {what}", hint="Separate tags by ||, as in: A || B"
        )
    if len(tag.encode()) > TAG_BYTES_MAX:
        raise InvalidFilter(
            expression, at, f"this tag has {len(tag.encode())} bytes, {TAG_BYTES_MAX} are allowed"
        )
