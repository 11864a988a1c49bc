"""Apache RocketMQ in Java, by its packages on Maven Central: a NameServer and a broker.

Durability as a user gets it: asynchronous flush (RocketMQ's default), one replica. By default a pull brings
32 messages at most; here it may bring 1,000 and 1 MiB, so that many small messages do not count against it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final

from benchmarks.peers import packages
from benchmarks.peers.java_server import JVM_OPTIONS, JavaServer, free_ports

ABOUT: Final = (
    f"Apache RocketMQ {packages.ROCKETMQ}: one broker, one replica, asynchronous flush, heap 1 GiB, "
    "pulls of up to 1,000 messages"
)
_BROKER: Final = """\
brokerClusterName=peers
brokerName=broker-a
brokerId=0
brokerIP1=127.0.0.1
listenPort={port}
namesrvAddr={nameserver}
storePathRootDir={data}
storePathCommitLog={data}/commitlog
defaultTopicQueueNums={queues}
flushDiskType=ASYNC_FLUSH
maxTransferCountOnMessageInMemory=1000
maxTransferBytesOnMessageInMemory=1048576
maxTransferCountOnMessageInDisk=1000
maxTransferBytesOnMessageInDisk=1048576
"""


class RocketmqServer:
    """A running NameServer and broker, which makes topics when they are first sent to; a context manager."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._directory = TemporaryDirectory(prefix="peers-rocketmq-")
        self._servers: list[JavaServer] = []
        self.nameserver = ""

    def __enter__(self) -> RocketmqServer:
        home = Path(self._directory.name)
        named, port = free_ports(2)
        self.nameserver = f"127.0.0.1:{named}"
        (home / "nameserver.conf").write_text(f"listenPort={named}\n")
        settings = _BROKER.format(
            port=port, nameserver=self.nameserver, data=home / "data", queues=self._queues
        )
        (home / "broker.conf").write_text(settings)
        try:
            self._start(home, "nameserver", named, "namesrv.NamesrvStartup", ("-Xmx256m",))
            self._start(home, "broker", port, "broker.BrokerStartup", JVM_OPTIONS)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, home: Path, name: str, port: int, program: str, options: tuple[str, ...]) -> None:
        arguments = [*options, *packages.rocketmq_options(home), f"org.apache.rocketmq.{program}"]
        arguments += ["-c", str(home / f"{name}.conf")]
        environment = {"ROCKETMQ_HOME": str(home)}
        self._servers.append(JavaServer(arguments, port, home / f"{name}.log", environment))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in reversed(self._servers):
            server.stop()
        self._directory.cleanup()
