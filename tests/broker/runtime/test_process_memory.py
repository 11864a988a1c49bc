"""A broker process and its memory, looked at from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3

from rocketq.local_cluster.server_process import ServerProcess

DOCUMENT = json.dumps({"messages": [{"body": "b", "key": "k", "tag": "t", "properties": {"a": "1"}}]})


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_broker_never_loads_pandas(tmp_path: Path) -> None:
    arguments = ["--name", "broker-a", "--data-dir", str(tmp_path / "data"), "--parent-pid", str(os.getpid())]
    server = ServerProcess("broker-a", "rocketq_broker", arguments, port=0, log=tmp_path / "log")
    server.start()
    try:
        messages = f"{server.address}/v1/topics/orders/messages"
        sent = urllib3.request("POST", messages, body=DOCUMENT, headers={"content-type": "application/json"})
        assert sent.status == 200, sent.data
        queue = sent.json()["appended"][0]["queue"]
        path = f"{server.address}/v1/topics/orders/queues/{queue}/messages?offset=0"
        for query in ("", "&tag=t", "&sql=a%20%3D%201"):
            for form in ("application/json", "application/vnd.apache.arrow.stream"):
                pulled = urllib3.request("GET", path + query, headers={"accept": form})
                assert pulled.status == 200, pulled.data
        assert "pandas" not in mapped(server.pid)
        assert "pyarrow" in mapped(server.pid)
    finally:
        server.stop()


def test_large_blocks_are_reused_where_the_c_library_can() -> None:
    code = "from rocketq_broker.runtime.memory_settings import keep_freed_memory; print(keep_freed_memory())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    has_glibc = sys.platform == "linux" and "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    assert told.strip() == str(has_glibc)
