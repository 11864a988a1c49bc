"""The few metrics of a broker that the console shows, read from Prometheus' text format.

A broker with many groups answers many lines, of which the console needs a few names; so the others are passed
over by their beginning, and no general parser takes each line apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_COUNTERS: Final = {
    "rocketmq_messages_in_total": "messages_in",
    "rocketmq_messages_out_total": "messages_out",
    "rocketmq_throughput_in_total": "bytes_in",
    "rocketmq_throughput_out_total": "bytes_out",
}
#: The metric, and what the console calls it.
_GAUGES: Final = {
    "rocketq_log_bytes": "log_bytes",
    "rocketq_open_transactions": "open_transactions",
    "rocketq_parked_transactions": "parked_transactions",
    "rocketmq_half_messages": "half_messages",
    "rocketq_sink_pending_decisions": "pending_batches",
    "rocketq_sink_staged_bytes": "staged_bytes",
    "rocketmq_timing_messages": "delayed_messages",
    "rocketq_store_troubles": "troubles",
}
_LAG: Final = "rocketmq_consumer_lag_messages"
_AGE: Final = "rocketmq_consumer_lag_latency"
_LETTERS: Final = "rocketmq_send_to_dlq_messages_total"
_WANTED: Final = (*_COUNTERS, *_GAUGES, _LAG, _AGE, _LETTERS)
_LINE: Final = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Sample:
    """What one broker counts at one moment.

    `lags` (messages) and `ages_ms` are by group and topic, `letters` counts the messages of each group that
    became dead letters since the broker was started.
    """

    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, int] = field(default_factory=dict)
    topics_in: dict[str, int] = field(default_factory=dict)
    lags: dict[tuple[str, str], int] = field(default_factory=dict)
    ages_ms: dict[tuple[str, str], float] = field(default_factory=dict)
    letters: dict[str, int] = field(default_factory=dict)


def read_sample(text: str) -> Sample:
    """Return what the console shows of a broker's metrics; lines of other metrics are passed over."""
    sample = Sample()
    for line in text.splitlines():
        if not line.startswith(_WANTED):
            continue
        found = _LINE.fullmatch(line)
        if found is not None:
            labels = dict(_LABEL.findall(found[2] or ""))
            _take(sample, found[1], labels, float(found[3]))
    return sample


def _take(sample: Sample, name: str, labels: dict[str, str], value: float) -> None:
    group, topic = labels.get("consumer_group", ""), labels.get("topic", "")
    if name in _COUNTERS:
        counter = _COUNTERS[name]
        sample.counters[counter] = sample.counters.get(counter, 0) + int(value)
        if counter == "messages_in":
            sample.topics_in[topic] = sample.topics_in.get(topic, 0) + int(value)
    elif name in _GAUGES:
        gauge = _GAUGES[name]
        sample.gauges[gauge] = sample.gauges.get(gauge, 0) + int(value)
    elif name == _LAG:
        sample.lags[group, topic] = int(value)
    elif name == _AGE:
        sample.ages_ms[group, topic] = value
    elif name == _LETTERS:
        sample.letters[group] = sample.letters.get(group, 0) + int(value)
