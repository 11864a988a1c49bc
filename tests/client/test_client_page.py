"""The page docs/client.md: its examples run from top to bottom, against a real cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rocketq import LocalCluster
from tests.test_docs import SHOWN, blocks

PAGE: Final = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_examples_of_the_page_run_from_top_to_bottom(cluster: LocalCluster, topic: str) -> None:
    python = [block for block in blocks(PAGE.read_text()) if block.language == "python"]
    script = "\n".join(block.text for block in python if not block.shown_only)
    script = script.replace("http://127.0.0.1:9876", ",".join(cluster.nameservers))
    for name in ("orders", "billing", "reports", "nightly-report"):
        script = script.replace(f'"{name}"', f'"{name}-{topic}"')
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "b'hello'" in done.stdout
    assert re.search(rf"^billing-{topic} ", done.stdout, re.MULTILINE)
    # What a program must have itself is shown only, and there is little of it.
    assert len([block for block in python if block.shown_only]) == 1, SHOWN
