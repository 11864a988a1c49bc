"""The page docs/consumer.md: its examples run from top to bottom, against a real cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rocketq import LocalCluster, Message
from tests.support.patience import PatientClient

ROOT: Final = Path(__file__).parents[3]


def test_the_examples_of_the_page_run_from_top_to_bottom(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "consumer.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with LocalCluster(brokers=1) as cluster:
        with PatientClient(cluster.nameservers) as mq:
            mq.create_topic("orders", queues=1)
            with mq.producer() as producer:
                bodies = [b"%d" % n for n in range(9)] + [b"last"]
                paid = {"amount": "41"}
                producer.send_batch("orders", [Message(body, b"o-1", "paid", paid) for body in bodies])
        script = "\n".join(examples).replace("http://127.0.0.1:9876", cluster.nameservers[0])
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=540
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "b'last' 1" in done.stdout
    assert "filter paid" not in done.stderr
    assert (tmp_path / "offsets" / "cache-1.json").exists()
