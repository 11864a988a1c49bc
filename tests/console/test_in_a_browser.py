"""The console in a real browser: scripts run under the policy, pages refresh, keys, the live tail, plots."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketq import Client, Message
from tests.console.conftest import Visitor
from tests.support.browser import Browser, Page, chromium

PROGRAM = chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: install the package chromium"),
]

PATHS = ("/", "/topics", "/messages", "/groups", "/delayed", "/transactions", "/sinks", "/brokers", "/nope")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM) as running:
        yield running


def complaints(page: Page) -> list[str]:
    """What the browser logged: errors of scripts, refusals of the policy, files that did not load."""
    logged = [
        each["entry"]["text"]
        for each in page.events("Log.entryAdded")
        if each["entry"]["source"] != "network"
    ]
    thrown = [str(each["exceptionDetails"]) for each in page.events("Runtime.exceptionThrown")]
    return (
        logged
        + thrown
        + [each["errorText"] for each in page.events("Network.loadingFailed") if not each["canceled"]]
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_window_or_complains(
    browser: Browser, looking: Visitor, width: int
) -> None:
    page = browser.open(looking.address + "/", width)
    for path in PATHS:
        page.go(looking.address + path)
        assert page.value("document.documentElement.scrollWidth") <= width, path
        assert page.value("typeof htmx === 'object' || typeof htmx === 'function'"), path
    assert complaints(page) == []


def test_a_page_asks_again_and_keeps_what_was_typed(
    browser: Browser, looking: Visitor, mq: Client, topic: str
) -> None:
    page = browser.open(looking.address + f"/topics?q={topic}")
    page.value("document.querySelector('.filter input').value = 'typed'")
    assert page.value("document.querySelector('tbody') === null")
    mq.create_topic(topic, 1)
    page.wait_for(f"document.querySelector('tbody')?.innerText.includes('{topic}')")
    assert page.value("document.querySelector('.filter input').value") == "typed"
    assert complaints(page) == []


def test_keys_go_to_pages_and_to_the_search_field(browser: Browser, looking: Visitor) -> None:
    page = browser.open(looking.address + "/")
    page.press("gt")
    page.wait_for("location.pathname === '/topics' && document.readyState === 'complete'")
    page.press("/")
    assert page.value("document.activeElement.name") == "q"
    page.press("gs")
    assert page.value("document.activeElement.value") == "gs", "letters that are typed are no commands"
    assert page.value("location.pathname") == "/topics"


def test_the_live_tail_shows_messages_as_they_come_and_pauses(
    browser: Browser, looking: Visitor, mq: Client, topic: str
) -> None:
    mq.create_topic(topic, 1, brokers=["broker-a"])
    page = browser.open(looking.address + f"/topics/{topic}/tail")
    producer = mq.producer()
    producer.send(topic, b"<img src=x onerror=document.title='broken'>")
    page.wait_for("document.querySelectorAll('#tail tr').length === 1")
    assert page.value("document.querySelector('#tail').innerText.includes('<img')")
    producer.send_batch(topic, [Message(b"%d" % number) for number in range(60)])
    page.wait_for("document.querySelectorAll('#tail tr').length === 51")
    assert page.value("document.getElementById('tail-skipped').innerText") == "10 skipped"
    page.press("p")
    assert page.value("document.getElementById('tail-pause').innerText") == "Go on"
    assert page.value("document.title").startswith("Live tail")
    assert complaints(page) == []


def test_the_plots_draw_each_broker_in_light_and_dark(browser: Browser, looking: Visitor) -> None:
    for _ in range(3):
        looking.console.observer.look()
    for dark in (False, True):
        page = browser.open(looking.address + "/", dark=dark)
        page.wait_for("document.querySelectorAll('.plot canvas').length === 4")
        assert page.value("document.querySelector('.u-legend').innerText.includes('broker-b')")
        assert complaints(page) == []


def test_a_page_in_the_dark_has_a_dark_ground(browser: Browser, looking: Visitor, tmp_path: Path) -> None:
    grounds = []
    for dark in (False, True):
        page = browser.open(looking.address + "/topics", dark=dark)
        grounds.append(page.value("getComputedStyle(document.documentElement).backgroundColor"))
    assert grounds == ["rgb(246, 247, 249)", "rgb(15, 18, 22)"]
    page.picture(tmp_path / "page.png")
    assert struct.unpack(">I", (tmp_path / "page.png").read_bytes()[16:20])[0] == 1280


def test_a_form_is_sent_from_the_browser(browser: Browser, changing: Visitor, mq: Client, topic: str) -> None:
    mq.create_topic(topic, 1, brokers=["broker-a"])
    sent = mq.producer().send(topic, b"later", delay="10m")
    page = browser.open(changing.address + f"/delayed/message?id={sent.timer_id}")
    page.value("document.querySelector('form.change button').click()")
    page.wait_for("document.body.innerText.includes('It will not be delivered')")
    assert complaints(page) == []
