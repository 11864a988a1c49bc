"""A whole cluster on this machine: for tests, notebooks, the demo and `rocketq up`.

    with LocalCluster(brokers=2) as cluster:
        Client(cluster.nameservers) ...

Every server is a process of its own, started as a user would start it, on a free port of 127.0.0.1. `kill`
is a real crash.
Servers are named nameserver-1, nameserver-2, … and broker-a, broker-b, …; with several replicas of each
broker group these are broker-a.1, broker-a.2, …, and the NameServers keep the register of the groups.
Under the data directory each broker has a folder of its name and every server `logs/<name>.log`.

The cluster is up when each broker is ready (GET /readyz) and every NameServer knows its present address. So
the first call of a client finds everything.
"""

from __future__ import annotations

import shutil
import string
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

import urllib3

from rocketq.errors import InvalidConfiguration
from rocketq.local_cluster.server_process import (
    START_TIMEOUT_S,
    ServerNotStarted,
    ServerProcess,
    kill_all,
    stop_all,
)
from rocketq.model import FlushMode
from rocketq.protocol.documents.broker import decode
from rocketq.protocol.documents.nameserver import MASTER_ID, ClusterView
from rocketq.protocol.documents.replication import ReplicationStatus
from rocketq.system.extras import need

BROKERS_MAX: Final = len(string.ascii_lowercase)
REPLICAS_MAX: Final = 9
READY_POLL_S: Final = 0.02


class LocalCluster:
    """NameServers and brokers as child processes; a context manager, or `start` and `close`."""

    def __init__(
        self,
        brokers: int = 2,
        nameservers: int = 1,
        data_dir: str | Path | None = None,
        flush: FlushMode | str = FlushMode.ASYNC,
        *,
        nameserver_port: int = 0,
        broker_port: int = 0,
        replicas: int = 1,
        nameserver_arguments: Sequence[str] = (),
        broker_arguments: Sequence[str] | Callable[[str], Sequence[str]] = (),
    ) -> None:
        """Describe the cluster; nothing runs before `start`.

        Without `data_dir` a temporary directory is used and removed by `close`. A port is that
        of the first server of its kind, the next ones take the following ports; 0 takes any free
        one. Of each broker group there are so many `replicas`, each a process. The arguments are appended to
        each server's own, as on its command line; those of brokers may depend on the name of the process.
        """
        if not 1 <= brokers <= BROKERS_MAX:
            raise InvalidConfiguration("brokers", brokers, f"a local cluster has 1 to {BROKERS_MAX}")
        if nameservers < 1:
            raise InvalidConfiguration("nameservers", nameservers, "at least one is needed")
        if not 1 <= replicas <= REPLICAS_MAX:
            raise InvalidConfiguration("replicas", replicas, f"a group has 1 to {REPLICAS_MAX}")
        self.replicas = replicas
        self.flush = FlushMode(flush)
        self.data_dir = Path(data_dir) if data_dir is not None else Path(tempfile.mkdtemp(prefix="rocketq-"))
        self._temporary = data_dir is None
        self._nameserver_arguments = tuple(nameserver_arguments)
        self._broker_arguments = broker_arguments
        (self.data_dir / "logs").mkdir(parents=True, exist_ok=True)
        self._nameservers = [
            self._nameserver(n, nameserver_port + n if nameserver_port else 0) for n in range(nameservers)
        ]
        groups = [f"broker-{letter}" for letter in string.ascii_lowercase[:brokers]]
        #: The name of each broker process, with its group and its id there.
        self._members = {group: (group, 0) for group in groups}
        if replicas > 1:
            self._members = {f"{group}.{n}": (group, n) for group in groups for n in range(1, replicas + 1)}
        self._broker_port = broker_port
        self._brokers: dict[str, ServerProcess] = {}
        self._all: list[ServerProcess] = list(self._nameservers)
        self._finalizer = weakref.finalize(self, _abandon, self._all, self.data_dir, self._temporary)

    def start(self) -> Self:
        """Start every server, wait until the cluster can be used; raise ServerNotStarted, ExtraMissing."""
        need("LocalCluster", "server")
        try:
            self._start()
        except BaseException:
            # The caller gets no cluster, so it could not stop the servers that did start.
            kill_all(self._all)
            raise
        return self

    def close(self) -> None:
        """Stop the brokers, then the NameServers; remove the data if it was temporary."""
        stop_all(list(self._brokers.values()))
        stop_all(self._nameservers)
        self._finalizer()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nameservers(self) -> list[str]:
        """The addresses a client is given."""
        return [process.address for process in self._nameservers]

    @property
    def brokers(self) -> dict[str, str]:
        """Broker name to address, stopped ones included."""
        return {name: process.address for name, process in self._brokers.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """The address of every server, by its name."""
        return {process.name: process.address for process in self._all}

    @property
    def names(self) -> list[str]:
        """The names of all servers, as `kill` and the others take them."""
        return [process.name for process in self._all]

    def running(self, name: str) -> bool:
        """Whether the server's process is alive (a paused one is)."""
        return self._process(name).running

    def exit_code(self, name: str) -> int | None:
        """What a server's process ended with, -9 after SIGKILL; None while it runs."""
        return self._process(name).exit_code

    def command(self, name: str) -> list[str]:
        """The command that starts the server by hand, on its data and its port."""
        return self._process(name).command

    def pid(self, name: str) -> int:
        """The server's process id, for tests that look at it from outside."""
        return self._process(name).pid

    def log(self, name: str) -> Path:
        """The file that has what the server wrote to stderr."""
        return self._process(name).log

    def kill(self, name: str) -> None:
        """Crash a server: SIGKILL, without a flush, without telling anybody."""
        self._process(name).kill()

    def stop(self, name: str) -> int | None:
        """End a server in good order; return its exit code."""
        return self._process(name).stop()

    def pause(self, name: str) -> None:
        """Freeze a server (SIGSTOP): connections to it open and never answer."""
        self._process(name).pause()

    def resume(self, name: str) -> None:
        """Let a frozen server go on."""
        self._process(name).resume()

    def restart(self, name: str, port: int | None = None) -> None:
        """Start a server again on its data, on its port or another (0 is any); stop it first if it runs.

        A broker is registered when this returns; a NameServer knows every broker that answers.
        """
        process = self._process(name)
        process.stop()
        if port is not None:
            process.move(port)
        process.start()
        restarted = [process] if name in self._brokers else list(self._brokers.values())
        self._wait_until_ready([broker for broker in restarted if broker.answering])

    def _process(self, name: str) -> ServerProcess:
        for process in self._all:
            if process.name == name:
                return process
        raise InvalidConfiguration("name", name, f"the servers are {', '.join(self.names)}")

    def _start(self) -> None:
        for process in self._nameservers:
            process.launch()
        for process in self._nameservers:
            process.wait_until_listening()
        for n, name in enumerate(self._members):
            if name not in self._brokers:
                self._brokers[name] = self._broker(name, self._broker_port + n if self._broker_port else 0)
                self._all.append(self._brokers[name])
        brokers = list(self._brokers.values())
        for process in brokers:
            process.launch()
        for process in brokers:
            process.wait_until_listening()
        self._wait_until_ready(brokers)

    def _nameserver(self, n: int, port: int) -> ServerProcess:
        name = f"nameserver-{n + 1}"
        return ServerProcess(
            name, "rocketq_nameserver", self._nameserver_arguments, port=port, log=self._log_path(name),
            more_arguments=lambda: self._register_arguments(name),
        )  # fmt: skip

    def _register_arguments(self, name: str) -> list[str]:
        """Have a NameServer keep the register of the groups, where there are replicas."""
        if self.replicas == 1:
            return []
        directory = self.data_dir / name
        is_new = not (directory / "acceptor").exists()
        directory.mkdir(parents=True, exist_ok=True)
        return ["--register-dir", str(directory), *(["--register-new"] if is_new else [])]

    def _broker(self, name: str, port: int) -> ServerProcess:
        group, number = self._members[name]
        arguments = [
            *("--name", group, "--broker-id", str(number), "--data-dir", str(self.data_dir / name)),
            *("--nameservers", ",".join(self.nameservers), "--flush", str(self.flush)),
            # After a crash on a directory that was emptied, a broker waits for its own former lease.
            "--wait-for-name",
            *self._arguments_of(name),
        ]
        return ServerProcess(name, "rocketq_broker", arguments, port=port, log=self._log_path(name))

    def _arguments_of(self, broker: str) -> Sequence[str]:
        given = self._broker_arguments
        return given(broker) if callable(given) else given

    def _log_path(self, name: str) -> Path:
        return self.data_dir / "logs" / f"{name}.log"

    def _wait_until_ready(self, brokers: Sequence[ServerProcess]) -> None:
        """Wait until each broker is ready and every NameServer that answers has it at its address."""
        watching = [process.address for process in self._nameservers if process.answering]
        if not watching:
            return
        deadline = time.monotonic() + START_TIMEOUT_S
        with urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(5.0)) as http:
            for process in brokers:
                group, number = self._members[process.name]
                known_as = _advertised(self._arguments_of(process.name)) or process.address
                while not _is_ready(http, process, _Known(group, number, known_as), watching):
                    if not process.running or time.monotonic() > deadline:
                        why = "it was not registered in time" if process.running else "it ended"
                        raise ServerNotStarted(process.name, why, str(process.log), process.log_tail())
                    time.sleep(READY_POLL_S)


@dataclass(frozen=True, slots=True)
class _Known:
    """As what the NameServers are to know a broker process."""

    group: str
    number: int
    address: str


def _is_ready(
    http: urllib3.PoolManager, broker: ServerProcess, known: _Known, nameservers: Sequence[str]
) -> bool:
    try:
        if http.request("GET", f"{broker.address}/readyz").status != 200:
            return False
        if known.number and not _is_in_sync(http, broker, known.number):
            return False
        return all(_knows(http, address, known) for address in nameservers)
    except urllib3.exceptions.HTTPError:
        return False


def _is_in_sync(http: urllib3.PoolManager, broker: ServerProcess, number: int) -> bool:
    answer = http.request("GET", f"{broker.address}/v1/replication")
    if answer.status != 200:
        return False
    status = decode(answer.data, ReplicationStatus, "the state of a replica")
    return any(each.number == number and each.is_in_sync for each in status.replicas)


def _knows(http: urllib3.PoolManager, nameserver: str, known: _Known) -> bool:
    """Whether a NameServer has a broker at its address, and a master of its group."""
    answer = http.request("GET", f"{nameserver}/v1/cluster")
    if answer.status != 200:
        return False
    view = decode(answer.data, ClusterView, "the cluster view")
    of_group = [live.identity for live in view.brokers if live.identity.broker == known.group]
    has_master = any(identity.broker_id == MASTER_ID for identity in of_group)
    return has_master and any(identity.address == known.address for identity in of_group)


def _advertised(arguments: Sequence[str]) -> str:
    """Return the address that brokers with these arguments register; "" if it is where they listen."""
    found = ""
    for argument, following in pairwise([*arguments, ""]):
        if argument == "--advertise":
            found = following
        elif argument.startswith("--advertise="):
            found = argument.removeprefix("--advertise=")
    return found.rstrip("/")


def _abandon(processes: list[ServerProcess], data_dir: Path, temporary: bool) -> None:
    """End the processes and remove temporary data, also if the owner forgot to close."""
    kill_all(processes)
    if temporary:
        shutil.rmtree(data_dir, ignore_errors=True)
