"""How a table fits the width of a terminal: no cell is cut, and no two rows look alike because of a cut.

    fits            a table
    too wide        columns that say the same in each row are taken out, and said once below it
    still too wide  each row as a block of lines, as psql's `\\x auto` has it

This module only decides; `output` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

#: What a box takes: a rule and two blanks for each column, and the last rule.
_BOX_EACH: Final = 3
_BOX_END: Final = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a table has, by their numbers, and what was taken out of it."""

    columns: tuple[int, ...]
    #: The numbers of columns that say the same in each row.
    same: tuple[int, ...] = field(default=())
    as_blocks: bool = False


def layout_of(titles: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> Layout:
    """Return how rows of `cells` are shown on `width` columns of a terminal."""
    every = tuple(range(len(titles)))
    if not cells or _width(every, titles, cells) <= width:
        return Layout(every)
    same = tuple(n for n in every if len(cells) > 1 and len({row[n] for row in cells}) == 1)
    # The first column says what a row is about.
    varied = tuple(n for n in every if n == 0 or n not in same)
    if _width(varied, titles, cells) <= width:
        return Layout(varied, tuple(n for n in same if n != 0))
    return Layout(every, as_blocks=True)


def _width(columns: Sequence[int], titles: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    longest = (max(len(titles[n]), *(len(row[n]) for row in cells)) for n in columns)
    return sum(each + _BOX_EACH for each in longest) + _BOX_END
