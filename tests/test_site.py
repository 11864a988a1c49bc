"""The documents as a site: it builds without a warning, needs no network, and leaves nothing out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import rocketq
from rocketq.errors.base import by_code

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "read", DOCS, site],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert built.returncode == 0, built.stderr
    assert (site / "searchindex.js").is_file()
    pages = [page.read_text() for page in site.rglob("*.html")]
    assert len(pages) > 20
    loads = re.compile(r"<(?:script|link|img)[^>]*=\"(https?://[^\"]*)")
    loaded = [url for page in pages for url in loads.findall(page)]
    assert loaded == []


def test_the_reference_has_every_public_name_once() -> None:
    described = [
        name
        for page in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"autoclass:: rocketq\.(\w+)", page.read_text())
    ]
    errors = {error.__name__ for error in by_code().values()} | {"RemoteError", "ClientError"}
    described.remove("RocketqError")
    schemas = {"CONSUMED_SCHEMA", "MESSAGE_SCHEMA"}
    assert sorted(described) == sorted(set(rocketq.__all__) - errors - schemas)


def test_troubleshooting_has_every_error_code_once() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    codes = [code for code, error in by_code().items() if error.__module__.startswith("rocketq.errors.")]
    assert sorted(listed) == sorted(set(codes) - {"ERROR"})
