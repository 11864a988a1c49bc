"""How many examples hypothesis makes of what a property claims.

`make test` makes a few, and the same ones each time: it says whether a change broke something, and no change
is refused for what another one left behind. `make test-slow` makes many, and others each time.
"""

from __future__ import annotations

from typing import Final

from hypothesis import settings

USUAL: Final = "usual"
THOROUGH: Final = "thorough"
#: The part of the examples of a costly property that `make test` makes.
_PART: Final = 4


def register_profiles() -> None:
    """Make both profiles known, and choose the usual one; --hypothesis-profile chooses another."""
    # How long an example takes says more about the machine than about the code.
    settings.register_profile(USUAL, deadline=None, derandomize=True, max_examples=30)
    settings.register_profile(THOROUGH, deadline=None, print_blob=True, max_examples=200)
    settings.load_profile(USUAL)


def examples(count: int) -> int:
    """Return `count` where the profile is thorough, else a part of it."""
    return count if settings.get_current_profile_name() == THOROUGH else count // _PART
