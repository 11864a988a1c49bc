"""What values look like on a page: bodies, sizes, times, metrics, cursors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.admin.survey import Answers
from rocketq.console import bodies, formats
from rocketq.console.metric_lines import Sample, read_sample
from rocketq.console.observer import observed
from rocketq.console.views.live_tail import read_cursor, write_cursor
from rocketq.console.views.messages import moment_us
from rocketq.errors import InvalidConfiguration

HIDDEN = "\x00\x1b\u202e\u2066\u200b\ufeff"


@given(st.binary(max_size=300))
def test_any_body_is_shown_without_invisible_characters(body: bytes) -> None:
    view = bodies.body_view(body)
    assert view.size == len(body)
    for text in (view.text, bodies.preview(body)):
        assert all(each.isprintable() or each in "\n\t" for each in text)


def test_a_body_is_json_text_bytes_or_empty() -> None:
    assert bodies.body_view(b'{"a": [1, 2]}').kind == "JSON"
    assert bodies.body_view(b"{not json").kind == "text"
    assert bodies.body_view(b"\xff\xfe\x00").kind == "bytes"
    assert bodies.body_view(b"").kind == "empty"
    assert bodies.body_view(b"[" * 60_000).kind == "text", "brackets too deep to parse are text"
    assert json.loads(bodies.body_view('{"ä": "ö"}'.encode()).text) == {"ä": "ö"}


def test_a_long_body_is_cut_and_says_so_also_within_a_character() -> None:
    view = bodies.body_view("ä".encode() * 40_000 + b"x")
    assert view.kind == "text"
    assert view.is_cut
    odd = bodies.body_view(b"x" + "ä".encode() * 40_000)
    assert odd.kind == "text"


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert bodies.visible(f"a{HIDDEN}b") == "a\\u{0}\\u{1b}\\u{202e}\\u{2066}\\u{200b}\\u{feff}b"


def test_what_is_not_known_is_never_zero() -> None:
    for show in (formats.count, formats.size, formats.rate, formats.byte_rate, formats.duration):
        assert "unknown" in show(None)
        assert "unknown" not in show(0)
    assert "unknown" in formats.moment(None, 0)


def test_numbers_have_units() -> None:
    assert formats.count(1_234_567) == "1,234,567"
    assert [formats.size(each) for each in (0, 1023, 1536, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
    ]
    assert [formats.duration(each) for each in (7, 1_000, 61_000, 90_061_000)] == [
        "7 ms", "1 s", "1 min 1 s", "1 d 1 h",
    ]  # fmt: skip
    shown = formats.moment(1_700_000_000_000_000, 1_700_000_060_000_000)
    assert "2023-11-14 22:13:20" in shown
    assert "1 min ago" in shown
    assert "in 1 min" in formats.moment(1_700_000_060_000_000, 1_700_000_000_000_000)
    assert "µs since 1970" in formats.moment(2**62, 0), "a time that no calendar has is shown as it is"


def test_metrics_are_read_by_group_and_topic_and_others_are_passed_over() -> None:
    sample = read_sample(
        "# HELP rocketmq_messages_in_total Messages.\n"
        'rocketmq_messages_in_total{cluster="c",topic="a"} 3.0\n'
        'rocketmq_messages_in_total{cluster="c",topic="b"} 4.0\n'
        'rocketmq_consumer_lag_messages{topic="a",consumer_group="g"} 7.0\n'
        'rocketmq_consumer_lag_latency{topic="a",consumer_group="g"} 1.5e+03\n'
        'rocketmq_send_to_dlq_messages_total{consumer_group="g"} 2.0\n'
        'rocketmq_something_else{topic="a"} 9\n'
    )
    assert (sample.counters["messages_in"], sample.topics_in) == (7, {"a": 3, "b": 4})
    assert sample.lags == {("g", "a"): 7}
    assert sample.ages_ms == {("g", "a"): 1500.0}
    assert sample.letters == {"g": 2}


def test_rates_are_the_growth_and_a_restart_makes_none() -> None:
    first = observed(None, Answers({"a": _counted(10), "b": _counted(90)}), 0, 1_000)
    second = observed(first, Answers({"a": _counted(30), "b": _counted(5)}), 0, 3_000)
    assert not first.rates
    assert second.rates["a"].messages_in == 10.0
    assert "b" not in second.rates, "a counter that fell belongs to another process"
    assert second.topic_rates == {"t": 10.0}


def _counted(messages: int) -> Sample:
    return Sample(counters={"messages_in": messages}, topics_in={"t": messages})


ends = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9_%|-]{1,20}", fullmatch=True),
    st.lists(st.integers(0, 2**62), min_size=1, max_size=5).map(tuple),
    max_size=4,
)


@given(ends)
def test_a_cursor_is_read_as_it_was_written(given_ends: dict[str, tuple[int, ...]]) -> None:
    assert read_cursor(write_cursor(given_ends)) == given_ends


@pytest.mark.parametrize("text", ["a=x", "a=-1", "a=1..2", "a=99999999999999999999", "a=١"])
def test_a_cursor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="no cursor"):
        read_cursor(text)


def test_a_time_is_a_moment_or_so_long_ago() -> None:
    now_us = 1_700_000_000_000_000
    assert moment_us("begin", "15m", now_us) == now_us - 900_000_000
    assert moment_us("begin", "2023-11-14T22:13:20Z", now_us) == now_us
    assert moment_us("begin", "2023-11-14T22:13:20", now_us) == now_us
    assert moment_us("begin", "", now_us) is None
    with pytest.raises(InvalidConfiguration, match="no time"):
        moment_us("begin", "soon", now_us)
