"""A body in pieces, for a request that is not worth copying."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes that follow one another; as often as it is sent it is the same."""

    parts: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes they are together."""
        return sum(part.nbytes for part in self.parts)
