"""Documents run: every code block of the README does what it says, against a real cluster.

A block under `<!-- shown, not run -->` is not executed; that what it names exists is
still checked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from rocketq import LocalCluster

ROOT: Final = Path(__file__).parent.parent
README: Final = (ROOT / "README.md").read_text()
SHOWN: Final = "<!-- shown, not run -->"
#: The address of documents; the tests' cluster is elsewhere.
DOCUMENTED: Final = "http://127.0.0.1:9876"
#: Every page, by its path.
PAGES: Final = [
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
]
COLUMNS_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block: its language, its text, and whether it is only to be shown."""

    language: str
    text: str
    shown_only: bool


def blocks(document: str) -> list[Block]:
    pattern = re.compile(rf"({re.escape(SHOWN)}\n)?```(\w*)\n(.*?)```", re.DOTALL)
    return [Block(match[2], match[3], bool(match[1])) for match in pattern.finditer(document)]


def anchors(document: str) -> set[str]:
    """Return what links to a document's headings are called."""
    headings = re.findall(r"^#+ (.*)$", document, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def environment(cluster: LocalCluster) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "ROCKETQ_NAMESERVERS": ",".join(cluster.nameservers)}


def run(arguments: list[str], cluster: LocalCluster, directory: Path) -> str:
    done = subprocess.run(
        arguments, cwd=directory, env=environment(cluster), capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_of_the_readme_has_a_language_that_is_run() -> None:
    #: `text` is the picture of the architecture.
    assert {block.language for block in blocks(README)} == {"bash", "python", "text"}


@pytest.mark.spark
def test_the_readme_runs_from_top_to_bottom(cluster: LocalCluster, tmp_path: Path) -> None:
    addresses = ",".join(cluster.nameservers)
    python = [block.text for block in blocks(README) if block.language == "python"]
    script = "\n".join(python).replace(DOCUMENTED, addresses)
    said = run([sys.executable, "-c", script], cluster, tmp_path)
    assert "o-1" in said
    assert "SEND_OK" in said
    assert (tmp_path / "checkpoints" / "paid-orders").is_dir()
    shell = "\n".join(b.text for b in blocks(README) if b.language == "bash" and not b.shown_only)
    said = run(["bash", "-euo", "pipefail", "-c", shell], cluster, tmp_path)
    assert "hello" in said
    assert json.loads(said[said.index("[\n") :])[0]["topic"] == "orders"


def test_what_is_only_shown_exists() -> None:
    shown = "".join(block.text for block in blocks(README) if block.shown_only)
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"rocketq\[([\w,]+)\]", shown):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", shown, re.MULTILINE):
        assert re.search(rf"^\.PHONY:.*\b{target}\b", makefile, re.MULTILINE)
    for command in re.findall(r"^rocketq ([\w-]+)", shown, re.MULTILINE):
        done = subprocess.run(
            [sys.executable, "-m", "rocketq.cli.main", command, "--help"], capture_output=True, timeout=60
        )
        assert done.returncode == 0


@pytest.mark.parametrize("document", [*PAGES, "CHANGELOG.md"])
def test_every_local_link_leads_somewhere(document: str) -> None:
    """To a file, and to a heading of it where the link names one."""
    path = ROOT / document
    for file, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not anchor or anchor in anchors(target.read_text()), f"{file}#{anchor}"


@pytest.mark.parametrize("document", PAGES)
def test_no_line_of_prose_is_wider_than_120_columns(document: str) -> None:
    """Tables, code blocks and lines that are one long link are free."""
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
    wide = [line for line in text.splitlines() if len(line) > COLUMNS_MAX]
    assert [line for line in wide if not line.startswith("|") and " " in line.strip()] == []


def test_the_make_targets_are_the_commands_of_dev_py() -> None:
    said = subprocess.run(
        [sys.executable, "dev.py", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    documented = set(re.findall(r"^    ([a-z-]+)  ", said, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert documented == set(phony[1].split()) - {"help"}


def test_every_path_on_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", page)
    folders = [ROOT, *(ROOT / folder for folder in ("connector", "broker_server", "nameserver"))]
    assert len(named) > 100
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []
