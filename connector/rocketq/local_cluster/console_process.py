"""The console beside a local cluster, as a process of its own.

It is no part of the cluster: if it does not start, or ends, the servers go on.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rocketq.local_cluster.cluster import LocalCluster
from rocketq.local_cluster.server_process import ServerNotStarted, ServerProcess


@dataclass(frozen=True, slots=True)
class ConsoleBeside:
    """Where the console is, or why there is none; both are empty if none was asked for."""

    address: str = ""
    why_not: str = ""


@contextmanager
def console_beside(
    cluster: LocalCluster, port: int, arguments: Sequence[str] | None
) -> Iterator[ConsoleBeside]:
    """Yield the console of the cluster; none if `arguments` is None.

    If the port is taken, it listens on any free one.
    """
    if arguments is None:
        yield ConsoleBeside()
        return
    log = cluster.data_dir / "logs" / "console.log"
    given = ["--nameservers", ",".join(cluster.nameservers), *arguments]
    process = ServerProcess("console", "rocketq.console", given, port=port if _is_free(port) else 0, log=log)
    try:
        process.start()
    except ServerNotStarted as error:
        yield ConsoleBeside(why_not=f"{error.facts['why']}; its log is {log}")
        return
    try:
        yield ConsoleBeside(process.address)
    finally:
        process.stop()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
