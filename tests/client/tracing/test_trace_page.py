"""The page docs/trace.md: its examples run from top to bottom, against a real cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rocketq import LocalCluster

PAGE: Final = Path(__file__).parents[3] / "docs" / "trace.md"


def test_the_examples_of_the_page_run_from_top_to_bottom(cluster: LocalCluster, topic: str) -> None:
    examples = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    script = examples.replace("http://127.0.0.1:9876", ",".join(cluster.nameservers))
    script = script.replace('"orders"', f'"{topic}"').replace('"billing"', f'"g-{topic}"')
    # A trace may be read before all its records are indexed; it is then not complete.
    script = script.replace(
        "    found = mq.trace(transaction.id)",
        "    while len(mq.query.by_key('RMQ_SYS_TRACE_TOPIC', transaction.id).messages) < 2: pass\n"
        "    found = mq.trace(transaction.id)",
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "b'41'"
    assert said[1].endswith(" SEND_OK")
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]", said[-1])
