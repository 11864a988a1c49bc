"""The page docs/http.md: each block runs against a real cluster, where its program is there."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from rocketq import LocalCluster

PAGE: Final = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
#: The documented addresses; the tests' cluster is elsewhere.
NAMESERVER: Final = "http://127.0.0.1:9876"
BROKER: Final = "http://127.0.0.1:10911"
#: What the page says that tests run only where it is there.
OPTIONAL: Final = ("polars", "duckdb")
#: How many blocks of commands make the topic and send to it.
SENT: Final = 4


def blocks(language: str) -> list[str]:
    """Return the blocks of a language, but for the one that a browser runs."""
    found = re.findall(rf"(<!-- .* -->\n)?```{language}\n(.*?)```", PAGE, re.DOTALL)
    return [text for mark, text in found if not mark]


def here(text: str, cluster: LocalCluster, topic: str) -> str:
    """Return a block with the addresses of the tests' cluster, and names that no other test uses."""
    text = text.replace(NAMESERVER, cluster.nameservers[0]).replace(BROKER, cluster.addresses["broker-a"])
    text = re.sub(r"groups/(billing|workers|web)", rf"groups/\1-{topic}", text)
    return re.sub(r"\borders\b", topic, text)


def run(arguments: list[str], directory: Path) -> str:
    done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"code"' not in done.stdout, done.stdout
    return done.stdout


def run_shell(cluster: LocalCluster, topic: str, directory: Path, count: int | None = None) -> str:
    """Run the first `count` blocks of commands, or all, as one script."""
    script = here("\n".join(blocks("bash")[:count]), cluster, topic)
    return run(["bash", "-euo", "pipefail", "-c", script], directory)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_commands_of_curl_send_pull_commit_lease_and_watch(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    said = run_shell(cluster, topic, tmp_path)
    assert "read up to offset 2\n" in said
    assert said.count('"status":"SEND_OK"') == 2
    assert '"receipt_handle":"broker-a:' in (tmp_path / "received.json").read_text()
    assert '"acknowledged":1' in said
    assert said.count(f'"offsets":[{{"topic":"{topic}","queue":0,"offset":2}}]') == 2
    assert '"topics":["' in said.splitlines()[-1]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_what_curl_sent_is_read_as_data_frames_and_more_is_sent(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    run_shell(cluster, topic, tmp_path, SENT)
    absent = [name for name in OPTIONAL if importlib.util.find_spec(name) is None]
    python = [text for text in blocks("python") if not any(f"import {name}" in text for name in absent)]
    assert len(python) == len(blocks("python")) - len(absent)
    check = (
        'print(json.dumps([read_topic("orders").num_rows, sorted(read_topic("orders")["tag"].to_pylist())]))'
    )
    said = run([sys.executable, "-c", here("\n".join([*python, check]), cluster, topic)], tmp_path)
    assert "3 messages" in said
    assert json.loads(said.splitlines()[-1]) == [5, ["open", "paid", "paid", "paid", "raw"]]


@pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("curl") is None, reason="there is no Node.js here"
)
def test_the_program_for_node_sends_reads_and_goes_on_where_it_was(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    run_shell(cluster, topic, tmp_path, SENT)
    program = tmp_path / "orders.mjs"
    program.write_text(here("\n".join(blocks("javascript")), cluster, topic))
    first = run(["node", str(program)], tmp_path)
    assert sorted(re.findall(r" (o-\d) ", first)) == ["o-1", "o-2", "o-3", "o-4"]
    again = run(["node", str(program)], tmp_path)
    assert re.findall(r" (o-\d) ", again) == ["o-4"]
