"""One etcd process on this machine, if the program is installed (Debian: etcd-server)."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.support.conditions import wait_until

PROGRAM: Final = shutil.which("etcd")

without_etcd = pytest.mark.skipif(PROGRAM is None, reason="the program etcd is not installed")


class Etcd:
    """A cluster of one member. `stop` ends it, `start` starts it again on its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._client, peer = (f"http://127.0.0.1:{port}" for port in _free_ports())
        self._arguments = [
            PROGRAM or "etcd", "--data-dir", str(directory / "etcd"), "--log-level", "error",
            "--listen-client-urls", self._client, "--advertise-client-urls", self._client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return self._client

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments, stderr=subprocess.DEVNULL, cwd=self._directory)
        wait_until(self._is_healthy)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _is_healthy(self) -> bool:
        try:
            with urlopen(f"{self._client}/health", timeout=5) as answer:
                return b"true" in answer.read()
        except (URLError, OSError):
            return False


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
