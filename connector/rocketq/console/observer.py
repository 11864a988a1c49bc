"""What the brokers count, looked at every few seconds: rates for the plots, and the lag of all groups.

One call of `/metrics` on each broker tells the lag of every group, so pages that list groups need no call for
each of them. The observer has one thread. What it saw last is a frozen value, which any thread may take; the
rates of the last hour are kept for the plots.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from rocketq.admin.survey import Answers, Survey
from rocketq.clock import Clock
from rocketq.console.metric_lines import Sample, read_sample
from rocketq.errors import NameServersUnreachable

INTERVAL_MS: Final = 5_000
#: One hour.
HISTORY: Final = 720

_log = structlog.get_logger("rocketq.console")


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, between two looks at one broker."""

    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, over the brokers that answered.

    `age_ms` is how old the oldest message is that it has yet to commit; None: not known.
    """

    messages: int
    age_ms: float | None


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at all live brokers. `rates` and `topic_rates` are empty at the first one."""

    at_us: int
    monotonic_ms: int
    samples: dict[str, Sample] = field(default_factory=dict, hash=False)
    rates: dict[str, Rates] = field(default_factory=dict, hash=False)
    topic_rates: dict[str, float] = field(default_factory=dict, hash=False)
    unreachable: dict[str, str] = field(default_factory=dict, hash=False)
    nameservers: str = ""

    @property
    def complete(self) -> bool:
        """Whether every live broker told its numbers."""
        return not (self.unreachable or self.nameservers)

    def lags(self) -> dict[str, GroupLag]:
        """Return the lag of each group that ever committed something."""
        messages: dict[str, int] = {}
        ages: dict[str, float] = {}
        for sample in self.samples.values():
            for (group, _), lag in sample.lags.items():
                messages[group] = messages.get(group, 0) + lag
            for (group, _), age in sample.ages_ms.items():
                ages[group] = max(ages.get(group, 0.0), age)
        return {group: GroupLag(lag, ages.get(group)) for group, lag in messages.items()}

    def total(self, name: str) -> int:
        """Return the sum of a gauge over the brokers that answered."""
        return sum(sample.gauges.get(name, 0) for sample in self.samples.values())


@dataclass(frozen=True, slots=True)
class History:
    """The rates of one broker: `seconds` since 1970 and, at the same index, rates; None: no answer."""

    seconds: tuple[float, ...]
    rates: tuple[Rates | None, ...]


class Observer:
    """Looks at the brokers on a thread of its own, from `start` to `close`."""

    def __init__(self, survey: Survey, clock: Clock, interval_ms: int = INTERVAL_MS) -> None:
        self.interval_ms = interval_ms
        self._survey, self._clock = survey, clock
        self._lock = threading.Lock()
        self._latest: Observation | None = None
        self._history: deque[Observation] = deque(maxlen=HISTORY)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rocketq-console-observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, after the look that is under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def latest(self) -> Observation:
        """Return the last look; take the first one now if there was none yet."""
        return self._latest or self.look()

    def look(self) -> Observation:
        """Ask all live brokers now, and return what they say."""
        try:
            answers = self._survey.ask(lambda master: read_sample(master.metrics()), probe=True)
        except NameServersUnreachable as error:
            answers = Answers(nameservers=error.message)
        found = observed(self._latest, answers, self._clock.now_us(), self._clock.monotonic_ms())
        with self._lock:
            self._latest = found
            self._history.append(found)
        return found

    def history(self) -> dict[str, History]:
        """Return the rates of each broker, over the hour."""
        with self._lock:
            looks = list(self._history)[1:]
        seconds = tuple(each.at_us / 1e6 for each in looks)
        names = sorted({name for each in looks for name in each.rates})
        return {name: History(seconds, tuple(each.rates.get(name) for each in looks)) for name in names}

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the next look may succeed, and the log says what failed
                _log.error("look_failed", exc_info=error)
            if self._stopped.wait(self.interval_ms / 1000):
                return


def observed(
    before: Observation | None, answers: Answers[Sample], at_us: int, monotonic_ms: int
) -> Observation:
    """Return the look that these answers are, with the rates since the one before."""
    rates: dict[str, Rates] = {}
    topic_rates: dict[str, float] = {}
    elapsed_ms = 0 if before is None else monotonic_ms - before.monotonic_ms
    if before is not None and elapsed_ms > 0:
        for name, sample in answers.found.items():
            earlier = before.samples.get(name)
            if earlier is None:
                continue
            made = _rates(earlier, sample, 1000 / elapsed_ms)
            if made is not None:
                rates[name] = made
                _add(topic_rates, _growth(earlier.topics_in, sample.topics_in, 1000 / elapsed_ms))
    failed = answers.unreachable | {name: error.message for name, error in answers.refused.items()}
    return Observation(
        at_us, monotonic_ms, answers.found, rates, topic_rates, failed, answers.nameservers
    )  # fmt: skip


def _rates(before: Sample, now: Sample, per_second: float) -> Rates | None:
    """Return the rates between two samples; None if the broker was restarted between them."""
    names = ("messages_in", "messages_out", "bytes_in", "bytes_out")
    grown = [(now.counters.get(name, 0) - before.counters.get(name, 0)) * per_second for name in names]
    return Rates(*grown) if min(grown) >= 0 else None


def _growth(
    before: Mapping[str, int], now: Mapping[str, int], per_second: float
) -> Iterable[tuple[str, float]]:
    return ((name, (count - before.get(name, 0)) * per_second) for name, count in now.items())


def _add(sums: dict[str, float], found: Iterable[tuple[str, float]]) -> None:
    for name, value in found:
        sums[name] = sums.get(name, 0.0) + value
