"""One Kafka broker (KRaft: broker and controller in one process), with the JVM options of its start script.

Durability as a user gets it: no sync per write (Kafka's default), one replica.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final

from benchmarks.peers import packages
from benchmarks.peers.java_server import JVM_OPTIONS, JavaServer, free_ports

#: What a reader of a comparison has to know of this side.
ABOUT: Final = f"Apache Kafka {packages.KAFKA}: one broker, one replica, no sync a write, heap 1 GiB"
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


class KafkaServer:
    """A running broker; a context manager."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="peers-kafka-")
        self._server: JavaServer | None = None
        self.bootstrap = ""
        self.data = Path(self._directory.name) / "data"

    def __enter__(self) -> KafkaServer:
        home = Path(self._directory.name)
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        settings = home / "server.properties"
        settings.write_text(_SETTINGS.format(port=port, controller=controller, data=self.data))
        jars = ["-cp", f"{packages.kafka()}/*"]
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = ["java", *jars, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)]
        with (home / "format.log").open("wb") as log:
            subprocess.run(tool, check=True, stdout=log, stderr=log)
        self._server = JavaServer([*JVM_OPTIONS, *jars, "kafka.Kafka", str(settings)], port, home / "log")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.stop()
        self._directory.cleanup()

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid
