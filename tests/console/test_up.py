"""`rocketq up` and `rocketq console` as a user starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from rocketq import LocalCluster
from rocketq.local_cluster.console_process import console_beside

COMMAND = [sys.executable, "-m", "rocketq.cli.main"]


def started(arguments: Sequence[str], until: str) -> tuple[subprocess.Popen[str], str]:
    """Start the command line, and return it with what it said up to a line."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if until in line:
            return process, said
    raise AssertionError(said)


def fetched(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_up_serves_a_console_that_shows_its_brokers(tmp_path: Path) -> None:
    ports = ["--nameserver-port", "0", "--broker-port", "0", "--console-port", "0", "--brokers", "1"]
    process, said = started(["up", "--data-dir", str(tmp_path / "data"), *ports], "Ctrl-C")
    with process:
        address = re.search(r"^console +(http://127\.0\.0\.1:\d+)$", said, re.MULTILINE)
        assert address is not None, said
        page = fetched(address[1])
        assert "broker-a" in page
        assert "read-only" in page
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_the_console_command_serves_until_it_is_told_to_stop(cluster: LocalCluster) -> None:
    arguments = ["console", "--port", "0", "--allow-changes", "-s", ",".join(cluster.nameservers)]
    process, said = started(arguments, "The console is at")
    with process:
        address = re.search(r"at (http://127\.0\.0\.1:\d+) \(it may change the cluster\)", said)
        assert address is not None, said
        assert process.stdout is not None
        assert '"service": "console"' in process.stdout.readline()
        assert "changes allowed" in fetched(address[1] + "/topics")
        process.terminate()
        assert process.wait(60) == 0


def test_a_console_that_cannot_start_is_told_of_and_nothing_else(cluster: LocalCluster) -> None:
    with console_beside(cluster, 0, ["--no-such-option"]) as console:
        assert console.address == ""
        assert "console.log" in console.why_not
    assert all(cluster.running(name) for name in cluster.names)


def test_an_address_that_others_reach_must_be_asked_for() -> None:
    done = subprocess.run(
        [*COMMAND, "console", "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True,
        env=dict(os.environ), timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--insecure" in done.stderr
