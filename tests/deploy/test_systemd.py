"""The systemd units are sound, and what they start is a server that tells systemd when it is ready."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

UNITS: Final = Path(__file__).parents[2] / "deploy" / "systemd"
PYTHON: Final = "/opt/rocketq/bin/python"
#: Each unit, the name of its instance, and the file of settings beside it.
SERVICES: Final = [
    ("rocketq-nameserver.service", "", "nameserver.toml"),
    ("rocketq-broker@.service", "broker-a", "broker-a.toml"),
]
NOTICE_S: Final = 60


def start_command(unit: str, instance: str, state: Path, settings: Path) -> list[str]:
    """What systemd would start, with this Python, and with other places for state and settings."""
    (line,) = [each for each in (UNITS / unit).read_text().splitlines() if each.startswith("ExecStart=")]
    command = line.removeprefix("ExecStart=").replace("%i", instance).replace("%S", str(state))
    return shlex.split(command.replace(PYTHON, sys.executable).replace("/etc/rocketq", str(settings)))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for unit, _, _ in SERVICES:
        # systemd looks whether the program exists, and it does not where the tests run.
        text = (UNITS / unit).read_text().replace(PYTHON, sys.executable)
        (tmp_path / unit).write_text(text.replace("=rocketq\n", "=root\n"))
    files = [str(tmp_path / unit.replace("@", "@broker-a")) for unit, _, _ in SERVICES]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *files],
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize(("unit", "instance", "example"), SERVICES)
def test_a_server_takes_the_example_settings(unit: str, instance: str, example: str, tmp_path: Path) -> None:
    command = start_command(unit, instance, tmp_path, UNITS)
    assert command[command.index("--config") + 1] == str(UNITS / example)
    done = subprocess.run([*command, "--show-config", "table"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("unit", "instance", "example"), SERVICES)
def test_what_a_unit_starts_tells_systemd_when_it_is_ready(
    unit: str, instance: str, example: str, tmp_path: Path
) -> None:
    section = next(iter(tomllib.loads((UNITS / example).read_text())))
    (tmp_path / example).write_text(f"[{section}]\nport = 0\n")
    command = start_command(unit, instance, tmp_path, tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(NOTICE_S)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as server:
            try:
                assert notices.recv(100) == b"READY=1"
                assert server.stdout is not None
                # It takes connections by then: the line that says so is written before.
                assert b'"address"' in server.stdout.readline()
            finally:
                server.send_signal(signal.SIGTERM)
        assert server.returncode == 0


def test_a_server_goes_on_if_systemd_cannot_be_told(tmp_path: Path) -> None:
    (tmp_path / "nameserver.toml").write_text("[nameserver]\nport = 0\n")
    command = start_command("rocketq-nameserver.service", "", tmp_path, tmp_path)
    environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "nobody")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        try:
            assert "service_manager_not_told" in server.stderr.readline()
        finally:
            server.send_signal(signal.SIGTERM)
    assert server.returncode == 0
