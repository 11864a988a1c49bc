"""How long a compare-and-set of a group's record takes: three NameServers as acceptors, and etcd.

All are processes on this machine, and each acceptor syncs before it answers. One caller sets one version
after the other, as a master does. etcd is measured if its program is there (Debian: etcd-server): one member,
which also syncs.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.kit.instrument import introduce, options, report, say
from benchmarks.kit.servers import Server
from rocketq.errors import RocketqError
from rocketq.net.transport import Transport
from rocketq_broker.meta_register.etcd_register import EtcdRegister
from rocketq_broker.meta_register.meta_register import MetaRegister
from rocketq_broker.meta_register.nameserver_register import NameServerRegister

ACCEPTORS: Final = 3
P50_TARGET_MS: Final = 20.0
#: About as long as the record of a group of three.
RECORD: Final = "x" * 600
CLUSTER: Final = "DefaultCluster"
GROUP: Final = "broker-a"
TIMEOUT_MS: Final = 20_000
WARM_UP: Final = 10
START_S: Final = 30.0


@contextmanager
def acceptors(transport: Transport, directory: Path) -> Iterator[MetaRegister]:
    """A register on three NameServers."""
    with ExitStack() as stack:
        addresses = []
        for number in range(ACCEPTORS):
            place = directory / f"nameserver-{number}"
            place.mkdir()
            arguments = ("--port", "0", "--register-dir", str(place), "--register-new")
            addresses.append(stack.enter_context(Server("rocketq_nameserver", *arguments)).address)
        register = NameServerRegister(transport, addresses, CLUSTER, GROUP, timeout_ms=TIMEOUT_MS)
        stack.callback(register.close)
        yield register


@contextmanager
def etcd(transport: Transport, directory: Path) -> Iterator[MetaRegister]:
    """A register on one etcd."""
    client, peer = (f"http://127.0.0.1:{port}" for port in _free_ports())
    process = subprocess.Popen(
        ["etcd", "--data-dir", str(directory / "etcd"), "--log-level", "error",
         "--listen-client-urls", client, "--advertise-client-urls", client,
         "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
         "--initial-cluster", f"default={peer}"],
        stderr=subprocess.DEVNULL, cwd=directory,
    )  # fmt: skip
    try:
        register = EtcdRegister(transport, [client], CLUSTER, GROUP, timeout_ms=TIMEOUT_MS)
        _await_answer(register)
        yield register
    finally:
        process.kill()
        process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _await_answer(register: MetaRegister) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            register.read()
            return
        except RocketqError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"the register does not answer: {error}") from error
        time.sleep(0.05)


def times_of(register: MetaRegister, seconds: float) -> list[float]:
    """Set one version after the other for a time; return how long each took, in milliseconds."""
    version = register.read().version
    for _ in range(WARM_UP):
        version = register.cas(version, RECORD).version
    found = []
    deadline = time.perf_counter() + seconds
    while (began := time.perf_counter()) < deadline:
        version = register.cas(version, RECORD).version
        found.append(1000 * (time.perf_counter() - began))
    return found


def told(name: str, times: list[float]) -> dict[str, Any]:
    p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    verdict = "met" if p50 <= P50_TARGET_MS else "MISSED"
    say(f"{name:<24} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   {len(times)} calls   "
        f"target p50 <= {P50_TARGET_MS:.0f} ms   {verdict}")  # fmt: skip
    return {"p50_ms": p50, "p99_ms": p99, "calls": len(times), "target_p50_ms": P50_TARGET_MS}


def main() -> None:
    chosen = options("register_cas", "Set the record of a group, again and again.", seconds=3, turns=3)
    introduce("register_cas")
    ways = {"three NameServers": acceptors}
    if shutil.which("etcd"):
        ways["etcd"] = etcd
    else:
        say("etcd is not installed: it is left out")
    times: dict[str, list[float]] = {name: [] for name in ways}
    with ExitStack() as stack:
        registers = {}
        for name, way in ways.items():
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rocketq-bench-"))
            transport = Transport()
            stack.callback(transport.close)
            registers[name] = stack.enter_context(way(transport, Path(directory)))
        for _ in range(chosen.turns):
            for name, register in registers.items():
                times[name] += times_of(register, chosen.seconds)
    report("register_cas", chosen, {name: told(name, found) for name, found in times.items()})


if __name__ == "__main__":
    main()
