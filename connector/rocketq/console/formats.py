"""How values look on a page: counts, bytes, durations, times; and "unknown" for what is not known, never 0.

Times are UTC. A time on a page says how long ago it was, too.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

UNKNOWN: Final = Markup('<span class="unknown">unknown</span>')
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def count(value: float | None) -> str:
    """Return a number of things, with a comma at each thousand."""
    return UNKNOWN if value is None else f"{int(value):,}"


def size(value: float | None) -> str:
    """Return a number of bytes, in the unit that leaves one to four digits."""
    if value is None:
        return UNKNOWN
    left, unit = float(value), 0
    while left >= 1024 and unit < len(_UNITS) - 1:
        left, unit = left / 1024, unit + 1
    return f"{left:.0f} {_UNITS[unit]}" if unit == 0 or left >= 100 else f"{left:.1f} {_UNITS[unit]}"


def rate(value: float | None) -> str:
    """Return a number per second."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def byte_rate(value: float | None) -> str:
    """Return bytes per second."""
    return UNKNOWN if value is None else f"{size(value)}/s"


def duration(ms: float | None) -> str:
    """Return a duration in its two largest units."""
    if ms is None:
        return UNKNOWN
    if ms < 1_000:
        return f"{ms:.0f} ms"
    whole = int(ms)
    for at, (step, unit) in enumerate(_STEPS):
        if whole >= step:
            rest = (whole % step) // _STEPS[at + 1][0] if at + 1 < len(_STEPS) else 0
            return f"{whole // step} {unit}" + (f" {rest} {_STEPS[at + 1][1]}" if rest else "")
    return f"{whole} ms"


def moment(at_us: int | None, now_us: int) -> str:
    """Return a time, and how far it is from now."""
    if at_us is None:
        return UNKNOWN
    try:
        at = datetime.fromtimestamp(at_us / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return Markup("<span>{} µs since 1970</span>").format(at_us)
    distance = duration(abs(now_us - at_us) / 1000)
    relative = f"in {distance}" if at_us > now_us else f"{distance} ago"
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    day = "%Y-%m-%d %H:%M:%S"
    return Markup('<time datetime="{}" title="{}">{} <small>{}</small></time>').format(
        exact, exact, at.strftime(day), relative
    )
