"""The curl command of docs/protocol.md sends a message to a running broker."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.broker.conftest import StartBroker

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_documented_curl_command_sends_one_message(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create("orders")
    (command,) = re.findall(r"```bash\n(curl --data-binary.*?)```", PROTOCOL.read_text(), re.DOTALL)
    arguments = shlex.split(command.replace("http://127.0.0.1:10911", broker.address).replace("\\\n", " "))
    done = subprocess.run([*arguments, "-sS"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["appended"] == [{"queue": 0, "offset": 0, "count": 1}]
    (message,) = broker.pull("orders", 0, 0, "application/json").json["messages"]
    assert (message["body"], message["key"], message["tag"]) == ("hello", "o-17", "paid")
    assert message["properties"] == {"region": "eu"}
