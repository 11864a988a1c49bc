"""The console beside a local cluster, as a process of its own.

It is no part of the cluster: if it ends, the servers go on.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rocketq.local_cluster.cluster import LocalCluster
from rocketq.local_cluster.server_process import ServerProcess


@contextmanager
def console_beside(cluster: LocalCluster, port: int, arguments: Sequence[str] | None) -> Iterator[str]:
    """Yield the address of a console of the cluster; empty, without a console, if `arguments` is None.

    If the port is taken, it listens on any free one. Raises ServerNotStarted.
    """
    if arguments is None:
        yield ""
        return
    log = cluster.data_dir / "logs" / "console.log"
    given = ["--nameservers", ",".join(cluster.nameservers), *arguments]
    process = ServerProcess("console", "rocketq.console", given, port=port if _is_free(port) else 0, log=log)
    process.start()
    try:
        yield process.address
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
