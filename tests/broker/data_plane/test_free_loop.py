"""The event loop waits for no disk and checks no large body: other calls are answered meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rocketq.model import Message
from rocketq_broker.data_plane.sends import send
from rocketq_broker.store.disk.files import DiskUsage, NotCached, OSFile, OSFiles
from tests.broker.conftest import StartBroker
from tests.broker.data_plane.test_pull import wait_until_held
from tests.support.http_client import Http, numbered, stream

ANSWER_S = 60


class ColdDisk:
    """A disk with nothing in the page cache, on which pulls wait for `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading, self.go = threading.Event(), threading.Event()
        read = OSFile.read

        def not_cached(*_: Any) -> bytes:
            raise NotCached

        def slow(file: OSFile, size: int, at: int) -> bytes:
            self.reading.set()
            assert self.go.wait(ANSWER_S)
            return read(file, size, at)

        monkeypatch.setattr(OSFile, "read_cached", not_cached)
        monkeypatch.setattr(OSFile, "read", slow)


@pytest.mark.parametrize("parameters", [{}, {"tag": "a"}])
def test_sends_are_answered_while_a_pull_waits_for_the_disk(
    broker: Http, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any]
) -> None:
    messages = [Message(b"%d" % number, tag="a") for number in range(3)]
    assert broker.send("orders", stream(messages), "?queue=0").status == 200
    disk = ColdDisk(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(broker.pull, "orders", 0, 0, **parameters)
        assert disk.reading.wait(ANSWER_S)
        assert broker.send("orders", stream(numbered(1)), "?queue=1").status == 200
        large = stream([Message(bytes(200_000))])
        assert broker.send("orders", large, "?queue=1").status == 200
        assert not pulled.done()
        disk.go.set()
        assert pulled.result(ANSWER_S).header("x-rocketq-next-offset") == "3"


def test_a_held_pull_whose_message_is_not_cached_gets_it_from_a_thread(
    broker: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(broker.pull, "orders", 0, 0, wait_ms=60_000)
        wait_until_held(broker, 1)
        assert broker.send("orders", stream(numbered(2)), "?queue=0").status == 200
        assert disk.reading.wait(ANSWER_S)
        disk.go.set()
        assert pulled.result(ANSWER_S).header("x-rocketq-next-offset") == "2"


def test_a_large_body_is_checked_on_a_thread_and_a_small_one_on_the_loop(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    checked_by: list[threading.Thread] = []
    admit = send.admit

    def watched(*given: Any) -> Any:
        checked_by.append(threading.current_thread())
        return admit(*given)

    monkeypatch.setattr(send, "admit", watched)
    for size in (1_000, 1_000, 200_000):
        # Two batches: one alone may take the short way of single messages.
        body = stream([Message(bytes(size))], [Message(b"second")])
        assert broker.send("orders", body, "?queue=0").status == 200
    loop, *others = dict.fromkeys(checked_by)
    assert checked_by[:4] == [loop] * 4
    assert len(others) == 1


@pytest.mark.parametrize("path", ["/readyz", "/v1/statistics"])
def test_calls_are_answered_while_a_file_system_is_slow_to_tell_its_size(
    broker: Http, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    asked, go = threading.Event(), threading.Event()
    usage = OSFiles.usage

    def slow(files: OSFiles) -> DiskUsage:
        asked.set()
        assert go.wait(ANSWER_S)
        return usage(files)

    monkeypatch.setattr(OSFiles, "usage", slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(broker.get, path)
        assert asked.wait(ANSWER_S)
        assert broker.get("/livez").status == 200
        assert not answer.done()
        go.set()
        assert answer.result(ANSWER_S).status == 200
