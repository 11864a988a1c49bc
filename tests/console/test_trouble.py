"""A cluster in trouble: the console shows what is known, and says who does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketq import Client, LocalCluster, Message
from tests.console.conftest import Visitor, visitor
from tests.support.conditions import wait_until

PATHS = (
    *("/", "/brokers", "/topics", "/groups", "/transactions", "/sinks", "/topics/orders", "/groups/billing"),
    *("/groups/billing/dead-letters", "/delayed?topic=orders", "/topics/orders/tail", "/search?q=orders"),
)


class Counted:
    """Which brokers a console asks; not by its observer, which probes."""

    def __init__(self, console: Visitor) -> None:
        self._survey, self._asked = console.console.survey, list[str]()

    def __enter__(self) -> list[str]:
        ask = self._survey.ask

        def counting(question: Any, *, probe: bool = False) -> Any:
            def counted(master: Any) -> Any:
                if not probe:
                    self._asked.append(master.broker)
                return question(master)

            return ask(counted, probe=probe)

        self._survey.ask = counting  # type: ignore[method-assign]
        return self._asked

    def __exit__(self, *_: object) -> None:
        del self._survey.ask


@pytest.fixture(scope="module")
def troubled() -> Iterator[LocalCluster]:
    """A cluster of its own, with a topic and a group on both brokers."""
    with LocalCluster(brokers=2, broker_arguments=["--lease-ms", "60000"]) as running:
        with Client(running.nameservers) as mq:
            mq.create_topic("orders", 1)
            producer = mq.producer()
            for _ in range(4):
                producer.send("orders", b"kept")
            mq.groups.set("billing")
            mq.groups.reset("billing", "orders", "earliest")
            producer.send_batch("orders", [Message(b"more")])
        yield running


@pytest.fixture(scope="module")
def console(troubled: LocalCluster) -> Iterator[Visitor]:
    yield from visitor(troubled.nameservers, timeout_ms=1_000)


def test_pages_answer_while_a_broker_is_frozen_and_name_it(troubled: LocalCluster, console: Visitor) -> None:
    assert console.get("/").status == 200
    troubled.pause("broker-b")
    try:
        for path in PATHS:
            page = console.get(path)
            assert page.status == 200, (path, page.text)
            assert "broker-b" in page.text
            assert "unreachable" in page.text or "does not answer" in page.text, path
        assert "kept" in console.get("/topics/orders").text, "the other broker's messages are shown"
        assert "at least" in console.get("/groups/billing").text, "a sum without a broker is a lower bound"
        assert "≥" in console.get("/topics/orders").text.partition("that consume it")[2], "there as well"
    finally:
        troubled.resume("broker-b")
    wait_until(lambda: "unreachable" not in console.get("/groups/billing").text)


def test_a_page_waits_for_a_frozen_broker_once(troubled: LocalCluster, console: Visitor) -> None:
    """It asks each broker several questions, and the second one is answered from the first."""
    troubled.pause("broker-b")
    try:
        wait_until(lambda: "unreachable" in console.get("/groups/billing").text)
        with Counted(console) as asked:
            assert "unreachable" in console.get("/brokers").text
        assert "broker-b" not in asked
        assert "broker-a" in asked
    finally:
        troubled.resume("broker-b")


def test_pages_go_on_with_the_known_brokers_while_no_name_server_answers(
    troubled: LocalCluster, console: Visitor
) -> None:
    assert console.get("/").status == 200
    troubled.kill("nameserver-1")
    try:
        for path in ("/", "/brokers", "/groups", "/topics/orders"):
            page = console.get(path)
            assert page.status == 200, (path, page.text)
            assert "No NameServer answers" in page.text or "unreachable" in page.text, path
        assert "kept" in console.get("/topics/orders").text
    finally:
        troubled.restart("nameserver-1")


def test_without_any_name_server_ever_a_page_says_whom_it_asked() -> None:
    for console in visitor(["http://127.0.0.1:9"], timeout_ms=1_000):
        page = console.get("/topics")
        assert page.status == 503
        assert "http://127.0.0.1:9" in page.text
