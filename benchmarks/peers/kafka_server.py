"""One Kafka broker (KRaft: broker and controller in one process), with the JVM options of its start script.

Durability as a user gets it: no sync per write (Kafka's default), one replica.
"""

from __future__ import annotations

import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final

from benchmarks.peers import packages

_JVM: Final = (
    "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_START_S: Final = 60.0


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now. Kafka has to be told its controller's port, so 0 will not do."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class KafkaServer:
    """A running broker; a context manager."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="peers-kafka-")
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""

    def __enter__(self) -> KafkaServer:
        home = Path(self._directory.name)
        port, controller = _free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        settings = home / "server.properties"
        settings.write_text(_SETTINGS.format(port=port, controller=controller, data=home / "data"))
        java = ["java", "-cp", f"{packages.kafka()}/*"]
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with (home / "log").open("wb") as log:
            tool = [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)]
            subprocess.run(tool, check=True, stdout=log, stderr=log)
            command = [*java[:1], *_JVM, *java[1:], "kafka.Kafka", str(settings)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_S
        while not self._answers(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((home / "log").read_text(errors="replace"))
            time.sleep(0.1)
        return self

    @staticmethod
    def _answers(port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid
