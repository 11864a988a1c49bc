"""The page docs/spark.md: its examples run from top to bottom, in a Spark of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from rocketq import LocalCluster, Message
from tests.support.patience import PatientClient
from tests.test_docs import blocks

PAGE: Final = Path(__file__).parents[2] / "docs" / "spark.md"
#: After each start of a query: what the page says about it is so when it has read what there is.
ALL_READ: Final = "query.processAllAvailable()\n"
#: In the end, the messages of a topic; brokers publish a batch a moment after it is decided.
COUNTED: Final = """
for each in spark.streams.active:
    each.processAllAvailable()
    each.stop()
for topic, count in {"orders": 4, "copies": 4, "alerts": 1, "archive": 4}.items():
    at = {"nameservers": "http://127.0.0.1:9876", "subscribe": topic}
    while (found := spark.read.format("rocketq").options(**at).load().count()) < count:
        pass
    print(topic, found, behind)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_the_examples_of_the_page_run_from_top_to_bottom(tmp_path: Path) -> None:
    examples = [block.text for block in blocks(PAGE.read_text()) if block.language == "python"]
    script = "".join(text + (ALL_READ if ".start()" in text else "") for text in examples) + COUNTED
    with LocalCluster(brokers=1) as cluster:
        with PatientClient(cluster.nameservers) as mq, mq.producer() as producer:
            producer.send_batch("orders", [Message(b"1", b"o-1", "high"), Message(b"2", b"o-2", "low")])
        done = subprocess.run(
            [sys.executable, "-c", script.replace("http://127.0.0.1:9876", cluster.nameservers[0])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=540,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["orders 4 0", "copies 4 0", "alerts 1 0", "archive 4 0"]
