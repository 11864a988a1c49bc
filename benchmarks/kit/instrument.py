"""The instrument: what every benchmark shares.

A benchmark compares something of ours with a *ceiling*, the least that anything
which keeps the same promise would have to do. Both are measured in the same run,
turn by turn, so that what else happens on the machine falls on both. Each side's
number is the median of its turns; the result that is meant to travel is the ratio.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = (
    "rocketq",
    "pyarrow",
    "numpy",
    "pyspark",
    "uvicorn",
    "uvloop",
    "httptools",
    "google-crc32c",
)
#: Of each result, what is printed in a column and in which unit.
RATE_UNITS: Final = {
    "bytes": ("MB/s", 1e6),
    "rows": ("M rows/s", 1e6),
    "seconds": ("ms", 1e-3),
    "calls": ("calls/s", 1.0),
}
#: What a billion bytes cost the server, or a million rows all processes together.
PROCESSOR_COST: Final = {
    "bytes": ("server processor seconds a GB", 1e9),
    "rows": ("processor seconds a million rows", 1e6),
    "calls": ("server processor microseconds a call", 1e6),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The command line: how long one turn lasts, how many turns, and where the result goes."""

    seconds: float
    turns: int
    json_path: Path | None
    seed: int
    #: How large the backlog is, where a benchmark is about one.
    messages: int = 0
    #: Leave memory as it is, where a benchmark would fill the page cache.
    cold: bool = False
    #: What all turns may take together, where a benchmark bounds that.
    minutes: float = 0.0

    def document(self) -> dict[str, float]:
        """What was chosen, without what this benchmark has no option for."""
        sizes = {"seconds": self.seconds, "messages": self.messages, "minutes": self.minutes}
        return {"turns": self.turns, "seed": self.seed} | {name: size for name, size in sizes.items() if size}


@dataclass(slots=True)
class Contestant:
    """One side: a name, and what one turn of it measures, in units a second."""

    name: str
    turn: Callable[[], float] = lambda: 0.0
    rates: list[float] = field(default_factory=list)
    #: Processor seconds a unit, of the server alone, where a turn measures it.
    costs: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def cost(self) -> float:
        return statistics.median(self.costs)


def options(
    name: str,
    about: str,
    seconds: float = 0.0,
    turns: int = 5,
    messages: int = 0,
    memory: bool = False,
    minutes: float = 0.0,
) -> Options:
    """Read the command line.

    `--seconds`, `--messages` and `--minutes` are there if they have a default, `--cold` if `memory` matters.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--json", type=Path, help="write the result here, as JSON")
    if seconds:
        parser.add_argument(
            "--seconds", type=float, default=seconds, help=f"of each turn (default {seconds:g})"
        )
    parser.add_argument("--turns", type=int, default=turns, help=f"of each contestant (default {turns})")
    parser.add_argument("--seed", type=int, default=20_240_229, help="of the data")
    if messages:
        parser.add_argument("--messages", type=int, default=messages, help=f"default {messages:,}")
    if memory:
        parser.add_argument("--cold", action="store_true", help="do not fill the page cache before each turn")
    if minutes:
        parser.add_argument(
            "--minutes", type=float, default=minutes, help=f"of all turns, default {minutes:g}"
        )
    given = parser.parse_args()
    size = given.messages if messages else 0
    cold = given.cold if memory else False
    minutes = given.minutes if minutes else 0.0
    seconds = given.seconds if seconds else 0.0
    return Options(seconds, max(1, given.turns), given.json, given.seed, size, cold, minutes)


def environment() -> dict[str, Any]:
    """What the numbers depend on: the machine, the versions, and how busy it was."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.platform(),
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
        "python": platform.python_version(),
        "versions": versions,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def alternate(
    contestants: Sequence[Contestant], turns: int, before: Callable[[], None] = lambda: None
) -> None:
    """Give each contestant its turns, in changing order, so that none always follows the same one.

    `before` is called before each turn, and not measured.
    """
    for turn in range(turns):
        for contestant in contestants if turn % 2 == 0 else list(reversed(contestants)):
            before()
            rate = contestant.turn()
            contestant.rates.append(rate)
            say(f"  turn {turn + 1}/{turns}  {contestant.name:<34} {rate:,.3f}")


def compare(ours: Contestant, ceiling: Contestant, unit: str, target: float | None) -> dict[str, Any]:
    """Return the comparison as a document, and print it."""
    name, scale = RATE_UNITS[unit]
    ratio = ours.median / ceiling.median
    goal = "" if target is None else f"   target >= {target:.0%}  {'met' if ratio >= target else 'MISSED'}"
    for each in (ours, ceiling):
        spread = f"({min(each.rates) / scale:,.2f} to {max(each.rates) / scale:,.2f})"
        say(f"{each.name:<36} {each.median / scale:>10,.2f} {name}  {spread}")
    say(f"{'ratio':<36} {ratio:>10.1%}{goal}")
    costs = {}
    if ours.costs and ceiling.costs:
        costs = {"ours": ours.cost, "ceiling": ceiling.cost}
        label, amount = PROCESSOR_COST[unit]
        told = ", ".join(f"{side} {cost * amount:.2f}" for side, cost in costs.items())
        say(f"{label:<36} {told}")
    return {
        "unit": f"{unit}/s",
        "ours": {"name": ours.name, "median": ours.median, "turns": ours.rates},
        "ceiling": {"name": ceiling.name, "median": ceiling.median, "turns": ceiling.rates},
        "ratio": round(ratio, 4),
        "target": target,
        "processor_seconds_per_unit": costs,
    }


def report(name: str, chosen: Options, results: dict[str, Any]) -> None:
    """Write the whole result where `--json` asks for it."""
    document = {
        "benchmark": name,
        "command": " ".join(["python -m", f"benchmarks.{name}", *sys.argv[1:]]),
        **chosen.document(),
        "environment": environment(),
        "results": results,
    }
    if chosen.json_path is not None:
        chosen.json_path.parent.mkdir(parents=True, exist_ok=True)
        chosen.json_path.write_text(json.dumps(document, indent=1) + "\n")


def introduce(name: str) -> None:
    """Print what is measured, and on what."""
    about = environment()
    machine = about["machine"]
    say(f"== {name}")
    say(
        f"   {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, load {machine['load_average'][0]}"
    )
    say(
        f"   Python {about['python']}, "
        + ", ".join(f"{package} {version}" for package, version in about["versions"].items())
    )


def say(line: str) -> None:
    print(line, flush=True)
