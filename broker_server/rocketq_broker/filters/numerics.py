r"""Numbers in text: the value of a property is a string, and a comparison may want a number.

    number   [+-] ( digits [ . [digits] ] | . digits ) [ (e|E) [+-] digits ]
    integer  [+-] digits, within 64 bits

White space, `NaN`, `Infinity` and hexadecimal digits are not part of a number. A value that is not a number
becomes null, and the comparison is then UNKNOWN. It is no error, because one wrong message must not stop a
consumer. A number becomes the nearest double, or infinity if it is too large. Integers beyond 2**53, such as
ids and nanoseconds, are also kept as exact integers.

Arrow converts a whole column or fails, and it accepts more than this grammar (`inf`, `nan`). So the bytes are
checked first. In most columns all bytes lie between `+` and `9`; what Arrow then accepts is a number. Only
other columns pay for a regular expression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NUMBER: Final = r"\A[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\z"
#: The bytes `+ , - . / 0 … 9`.
_PLAIN_FIRST: Final = ord("+")
_PLAIN_LAST: Final = ord("9")
#: Below it, a double holds every integer as it is.
_EXACT_MAX: Final = 2.0**53


def _integer_pattern() -> str:
    """Return the pattern of integers within 64 bits: 18 digits, or 19 that do not exceed the largest."""
    largest = str(2**63 - 1)
    smaller = [
        f"{largest[:at]}[0-{int(digit) - 1}][0-9]{{{len(largest) - at - 1}}}"
        for at, digit in enumerate(largest)
        if digit != "0"
    ]
    return rf"\A(?:[+-]?0*(?:[0-9]{{1,18}}|{'|'.join(smaller)}|{largest})|-0*{2**63})\z"


_INTEGER: Final = _integer_pattern()
_NO_TEXT: Final = pa.scalar(None, pa.string())


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers as doubles; `integers` has those that are integers, if doubles do not do."""

    doubles: pa.DoubleArray
    integers: pa.Int64Array | None


def parse_numbers(texts: pa.StringArray) -> Numbers:
    """Return the numbers in a column of texts; what is not a number is null."""
    doubles = _plain_doubles(texts)
    if doubles is None:
        texts = pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, _NO_TEXT)
        doubles = pc.cast(_unsigned(texts), pa.float64())
    ends = pc.min_max(doubles).as_py()
    if ends["min"] is None or -_EXACT_MAX < ends["min"] <= ends["max"] < _EXACT_MAX:
        return Numbers(doubles, None)
    whole = pc.if_else(pc.match_substring_regex(texts, _INTEGER), texts, _NO_TEXT)
    return Numbers(doubles, pc.cast(_unsigned(whole), pa.int64()))


def _plain_doubles(texts: pa.StringArray) -> pa.DoubleArray | None:
    """Return the numbers of a column that has plain ones only; None if it has others."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.float64())
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, 4 * texts.offset)
    used = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    if not used.size or used.min() < _PLAIN_FIRST or used.max() > _PLAIN_LAST:
        return None
    try:
        return pc.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        return None


def _unsigned(numbers: pa.StringArray) -> pa.StringArray:
    """Return numbers without a leading plus, which Arrow takes for doubles only, and not in every version."""
    return pc.utf8_ltrim(numbers, "+")
