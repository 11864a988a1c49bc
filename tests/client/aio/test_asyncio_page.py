"""The page docs/asyncio.md: its examples run from top to bottom, against a real cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rocketq import LocalCluster

ROOT: Final = Path(__file__).parents[3]


def test_the_examples_of_the_page_run_from_top_to_bottom(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "asyncio.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = "\n".join(examples).replace("http://127.0.0.1:9876", cluster.nameservers[0])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script.replace('"orders"', repr(topic))],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "b'hello'" in done.stdout
    assert "COMMIT" in done.stdout
    assert done.stderr == ""
