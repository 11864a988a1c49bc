"""The page docs/replication.md: its examples run against a real group."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from rocketq import LocalCluster

PAGE: Final = (Path(__file__).parents[2] / "docs" / "replication.md").read_text()
SHOWN: Final = "<!-- shown, not run -->\n"


def blocks(language: str) -> list[str]:
    """Return the blocks of a language that are to be run."""
    found = re.findall(rf"({re.escape(SHOWN)})?```{language}\n(.*?)```", PAGE, re.DOTALL)
    return [text for is_shown, text in found if not is_shown]


def run(group: LocalCluster, arguments: list[str]) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {**os.environ, "PATH": path, "ROCKETQ_NAMESERVERS": ",".join(group.nameservers)}
    done = subprocess.run(arguments, env=known, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_commands_of_the_page_work_in_their_order(group: LocalCluster) -> None:
    (commands,) = blocks("bash")
    said = run(group, ["bash", "-ec", commands])
    assert "master" in said
    assert "epoch" in said


def test_the_example_sends_to_a_group(group: LocalCluster) -> None:
    (example,) = blocks("python")
    said = run(group, [sys.executable, "-c", example.replace("http://127.0.0.1:9876", group.nameservers[0])])
    assert "SEND_OK" in said


@pytest.mark.parametrize("option", ["--broker-id", "--role", "--min-in-sync", "--etcd"])
def test_the_page_has_each_option(option: str) -> None:
    assert f"| `{option}` |" in PAGE
