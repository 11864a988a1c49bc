"""Where `consume --from` begins and ends: an edge, the last messages, a time, or an interval of time.

earliest  latest      the first message of each queue, or the next one
-10                   the last ten messages of each queue
@2026-11-20T08:00Z    the first message stored at or after this time; also @15m (ago), or µs since 1970
@08:00Z..@09:00Z      stored from the first time on and before the second; each with its date
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import rich_click as click

from rocketq.cli.messages.query import Moment


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin, and perhaps before which time to end. One of the first three is given."""

    edge: str | None = None
    last: int | None = None
    from_us: int | None = None
    until_us: int | None = None

    @property
    def start(self) -> dict[str, Any]:
        """The settings of a consumer that begins there, as far as a setting can say it."""
        if self.from_us is not None:
            return {"start": "time", "start_timestamp_us": self.from_us}
        return {"start": self.edge or "earliest"}


class PositionType(click.ParamType[Position]):
    """The value of `--from`."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        text = str(value)
        if text in ("earliest", "latest"):
            return Position(edge=text)
        if re.fullmatch(r"-[1-9]\d{0,17}", text):
            return Position(last=int(text[1:]))
        begin, dots, end = text.partition("..")
        times = [begin, end] if dots else [begin]
        if not all(time.startswith("@") for time in times):
            self.fail(
                f"{text!r} is no position; write earliest, latest, -10 (the last ten of each queue), "
                "@2026-11-20T08:00Z, @15m (ago), or an interval @1h..@15m", param, ctx,
            )  # fmt: skip
        moments = [Moment().convert(time[1:], param, ctx) for time in times]
        if len(moments) == 2 and moments[1] <= moments[0]:
            self.fail(f"{text!r} ends before it begins", param, ctx)
        return Position(from_us=moments[0], until_us=moments[1] if dots else None)
