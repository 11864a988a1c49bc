"""The table of options, and reading one option's text as a value.

An option is legal for some uses of the data source only. A key that is unknown, or known
but for another use, is refused here with the nearest name or the right place, before
anything looks at its value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final

from pyspark_rocketq.errors import UnknownOption
from rocketq.errors import InvalidConfiguration


class Use(Flag):
    """What a DataFrame does with the source; an option is legal for some of these."""

    BATCH_READ = auto()
    STREAM_READ = auto()
    BATCH_WRITE = auto()
    STREAM_WRITE = auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ANY = READ | WRITE


_USE_NAMES: Final = {
    Use.BATCH_READ: "spark.read",
    Use.STREAM_READ: "spark.readStream",
    Use.BATCH_WRITE: "df.write",
    Use.STREAM_WRITE: "df.writeStream",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the option table: its name as written in documents, and where it is legal."""

    name: str
    uses: Use


#: Every option there is; docs/spark.md describes each, which a test checks.
OPTIONS: Final = tuple(
    Option(name, uses)
    for uses, names in {
        Use.ANY: ["nameservers"],
        Use.READ: [
            "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp",
            "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "tags", "sql",
            "failOnDataLoss", "groupId", "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition",
            "smallRangeRows", "includeProperties", "brokerWaitMs",
        ],
        Use.BATCH_READ: ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushFilters"],
        Use.STREAM_READ: [
            "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
            "commitGroupOffsets", "longPollMs",
        ],
        Use.WRITE: [
            "topic", "queueSelection", "compression", "delivery", "sendTimeoutMs", "commitTimeoutMs",
            "maxRequestBytes",
        ],
        Use.BATCH_WRITE: ["txnAppId", "txnVersion"],
        Use.STREAM_WRITE: ["sinkId", "onDecidedBatch"],
    }.items()
    for name in names
)  # fmt: skip

#: Options that Spark itself puts beside ours, which it has dealt with already.
_SPARKS_OWN: Final = {"checkpointlocation": Use.STREAM_WRITE, "queryname": Use.STREAM_WRITE}

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}


# --- reading single values -----------------------------------------------------------

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES: Final = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "kb": 2**10,
    "m": 2**20,
    "mb": 2**20,
    "g": 2**30,
    "gb": 2**30,
}


class Given:
    """The given options, all of them known; each `name` is as in OPTIONS."""

    def __init__(self, raw: Mapping[str, str], use: Use) -> None:
        self._values = {key.lower(): value for key, value in raw.items()}
        for key in self._values:
            _check_known(key, self._values[key], use)

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def nameservers(self) -> tuple[str, ...]:
        text = self.text("nameservers")
        addresses = tuple(part.strip() for part in (text or "").split(",") if part.strip())
        if not addresses:
            raise InvalidConfiguration(
                "nameservers", text, "required: the addresses of the NameServers",
                hint='For example .option("nameservers", "http://127.0.0.1:9876").',
            )  # fmt: skip
        for address in addresses:
            if not re.fullmatch(r"https?://[^/@\s]+/?", address):
                raise InvalidConfiguration(
                    "nameservers", re.sub(r"//[^/]*@", "//", address), "not the base URL of a NameServer",
                    hint="An address looks like http://127.0.0.1:9876; several are separated by commas.",
                )  # fmt: skip
        return tuple(address.rstrip("/") for address in addresses)

    def integer(self, name: str, lowest: int, highest: int = 2**63 - 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[+-]?\d{1,19}", text.strip()):
            raise InvalidConfiguration(name, text, "not an integer")
        return _within(name, text, int(text), lowest, highest)

    def integer_or(self, name: str, default: int, lowest: int, highest: int = 2**63 - 1) -> int:
        value = self.integer(name, lowest, highest)
        return default if value is None else value

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise InvalidConfiguration(name, text, "neither true nor false")
        return text.strip().lower() == "true"

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        for value in allowed:
            if value.lower() == text.strip().lower():
                return str(value)
        listed = ", ".join(str(value) for value in allowed)
        raise InvalidConfiguration(name, text, "it is none of the known values", hint=f"Legal: {listed}.")

    def size(self, name: str, highest: int = 2**63 - 1) -> int | None:
        return self._measure(name, _UNITS_BYTES, "a size like 1048576, 512k, 64m or 1g", 1, highest)

    def size_or(self, name: str, default: int, highest: int) -> int:
        value = self.size(name, highest)
        return default if value is None else value

    def duration_ms(self, name: str, default: int) -> int:
        value = self._measure(name, _UNITS_MS, "a duration like 500ms, 30s, 15m or 1h", 0, 2**63 - 1)
        return default if value is None else value

    def _measure(
        self, name: str, units: Mapping[str, int], form: str, lowest: int, highest: int
    ) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        match = re.fullmatch(r"(\d{1,19})\s*([a-z]*)", text.strip().lower())
        if match is None or match[2] not in units:
            raise InvalidConfiguration(name, text, f"not {form}")
        return _within(name, text, int(match[1]) * units[match[2]], lowest, highest)


def _within(name: str, text: str, value: int, lowest: int, highest: int) -> int:
    if value < lowest:
        raise InvalidConfiguration(name, text, f"it must be at least {lowest}")
    if value > highest:
        raise InvalidConfiguration(name, text, f"it must be at most {highest}")
    return value


# --- options that are not ours ---------------------------------------------------------

_FOREIGN: Final[tuple[tuple[Callable[[str], Any], str, str], ...]] = (
    (
        re.compile(r"kafka\.bootstrap\.servers").fullmatch,
        "this is not the Kafka connector",
        'Use .option("nameservers", "http://host:9876") with the addresses of the NameServers.',
    ),
    (
        re.compile(r"kafka(consumer|)\..*|fetchoffset\..*").fullmatch,
        "Kafka's clients are not used here",
        "Leave it out; docs/spark.md lists the options side by side.",
    ),
    (
        re.compile(r"includeheaders").fullmatch,
        "rocketq's messages have properties",
        'Use .option("includeProperties", "true").',
    ),
    (
        re.compile(r"groupidprefix|kafka\.group\.id").fullmatch,
        "a group is only named, never generated",
        'Use .option("groupId", "...") to report progress to a group, or leave it out.',
    ),
    (
        re.compile(r"paths?").fullmatch,
        "rocketq has no paths",
        'Name the topic by .option("subscribe", ...) for reading, .option("topic", ...) for writing.',
    ),
)


def _check_known(key: str, value: str, use: Use) -> None:
    """Raise UnknownOption for a key that has no meaning in this use."""
    option = _BY_KEY.get(key)
    if option is not None and option.uses & use:
        return
    if key in _SPARKS_OWN and _SPARKS_OWN[key] & use:
        return
    if option is not None:
        where = " and ".join(name for flag, name in _USE_NAMES.items() if flag & option.uses)
        here = " or ".join(name for flag, name in _USE_NAMES.items() if flag & use)
        raise UnknownOption(option.name, value, f"it belongs to {where}, not to {here}", hint="Leave it out.")
    for matches, why, hint in _FOREIGN:
        if matches(key):
            raise UnknownOption(key, value, why, hint=hint)
    names = {known: o.name for known, o in _BY_KEY.items() if o.uses & use}
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if near:
        hint = f"Did you mean {names[near[0]]}?"
    else:
        hint = "Known: " + ", ".join(sorted(names.values(), key=str.lower)) + "."
    # The value may be a secret meant for another connector, so it is not repeated.
    raise UnknownOption(key, "…", "there is no such option", hint=hint)
