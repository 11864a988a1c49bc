"""The page docs/leases.md: its curl lines and its examples run from top to bottom, against a real cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from rocketq import Client, LocalCluster

PAGE: Final = (Path(__file__).parents[3] / "docs" / "leases.md").read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace("curl ", "curl -w '\\n' ")
    script = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as mq:
        lines = lines.replace("http://127.0.0.1:10911", cluster.brokers["broker-a"])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            env={**os.environ, "PATH": path, "ROCKETQ_NAMESERVERS": cluster.nameservers[0]},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        received, acknowledged, changed, leases = map(json.loads, done.stdout.splitlines()[-4:])
        assert [each["body"] for each in received["messages"]] == ["first", "second"]
        assert acknowledged["acknowledged"] == 1
        assert len(changed["changed"]) == 1
        assert [each["leased"] for each in leases["queues"]] == [1]

        with mq.producer() as producer:
            producer.send("parcels", b"third")
        script = script.replace("http://127.0.0.1:9876", cluster.nameservers[0])
        said = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )  # fmt: skip
        assert said.returncode == 0, said.stderr
        in_order = [f"parcels/broker-a/0 {offset}" for offset in range(3)]
    assert said.stdout.splitlines() == ["b'third' 1", *in_order]
