"""A console over the shared cluster: one that only shows, and one that may change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode

import pytest
import urllib3

from rocketq import Client, LocalCluster
from rocketq.console.app import ConsoleApp
from rocketq.console.console import Console, ConsoleConfig
from rocketq.http_server.runner import ServerThread

Fields = dict[str, str] | dict[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Got:
    """A page: its status, its HTML, and the headers of the answer."""

    status: int
    html: str
    headers: dict[str, str]

    @property
    def text(self) -> str:
        """What a person reads, with single spaces."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())


class Visitor:
    """Calls a console as a browser would; `address` is its base URL."""

    def __init__(self, address: str, console: Console) -> None:
        self.address, self.console = address, console
        self._http = urllib3.PoolManager(retries=False)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Got:
        answer = self._http.request("GET", self.address + path, headers=headers, redirect=False)
        return Got(answer.status, answer.data.decode(), {k.lower(): v for k, v in answer.headers.items()})

    def post(
        self, path: str, fields: dict[str, str | list[str]], headers: dict[str, str] | None = None
    ) -> Got:
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = self._http.request(
            "POST", self.address + path, body=urlencode(fields, doseq=True), headers=form | (headers or {})
        )
        return Got(answer.status, answer.data.decode(), {k.lower(): v for k, v in answer.headers.items()})

    def send(self, page: str, fields: Fields, to: str = "") -> Got:
        """Send the form of a page with its token."""
        token = re.search(r'name="token" value="([^"]+)"', self.get(page).html)
        assert token is not None, "the page has no form"
        origin = {"origin": self.address}
        return self.post(to or page, {"token": token[1], **fields}, origin)


def visitor(
    nameservers: list[str], *, allow_changes: bool = False, timeout_ms: int = 10_000
) -> Iterator[Visitor]:
    config = ConsoleConfig(nameservers, allow_changes=allow_changes, timeout_ms=timeout_ms, observe_ms=200)
    console = Console(config)
    with ServerThread(ConsoleApp(console)) as server:
        yield Visitor(server.address, console)


@pytest.fixture(scope="package")
def looking(cluster: LocalCluster) -> Iterator[Visitor]:
    """A console that only shows."""
    yield from visitor(cluster.nameservers)


@pytest.fixture(scope="package")
def changing(cluster: LocalCluster) -> Iterator[Visitor]:
    """A console that may change the cluster."""
    yield from visitor(cluster.nameservers, allow_changes=True)


@pytest.fixture
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.nameservers, trace=True) as client:
        yield client
