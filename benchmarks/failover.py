"""How long writing stands still when the master of a group dies, when it hands over, and when it is stopped.

A group of three brokers under sync flush, and three NameServers that keep its register. One producer sends
one message after the other. Counted is the longest time between two acknowledgements around a kill -9 of the
master, around a handover, and around a stop with SIGTERM: of the master, which hands over by itself, and of a
slave, which says goodbye. Beside it stands how long a send takes while all is well.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import threading
import time
from typing import Any, Final

from benchmarks.kit.instrument import introduce, options, report, say
from rocketq import Client, LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.protocol.documents.broker import CreateTopicRequest

GROUP: Final = "broker-a"
TOPIC: Final = "orders"
KILLED_P50_S: Final = 3.0
KILLED_MAX_S: Final = 8.0
HANDOVER_S: Final = 0.5
#: How long an operation here may take before the benchmark gives up.
WAIT_S: Final = 60.0


class Sender:
    """Sends one message after the other, and remembers when each was acknowledged."""

    def __init__(self, nameservers: list[str]) -> None:
        self._nameservers = nameservers
        self.acks: list[float] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender")
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._nameservers) as client:
            producer, place = client.producer(timeout_ms=int(WAIT_S * 1000)), MessageQueue(TOPIC, GROUP, 0)
            while not self._ending.is_set():
                producer.send(TOPIC, b"x" * 100, queue=place)
                self.acks.append(time.monotonic())

    def longest_pause(self, since: float, act: Any) -> float:
        """Return the longest time without an acknowledgement around an act, from `since` on."""
        act()
        enough = len(self.acks) + 20
        deadline = time.monotonic() + WAIT_S
        while len(self.acks) < enough and time.monotonic() < deadline:
            time.sleep(0.01)
        times = [since, *(each for each in self.acks if each >= since)]
        return max(after - before for before, after in itertools.pairwise(times))


def wait_until_whole(admin: ClusterAdmin) -> str:
    """Wait until all replicas are in sync; return the master's address."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            status = admin.replicas.status(GROUP)
            if status.role == "master" and all(each.is_in_sync for each in status.replicas):
                return status.master
        except RocketqError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"the group is not whole again: {error}") from error
        if time.monotonic() > deadline:
            raise SystemExit("the group is not whole again")
        time.sleep(0.05)


def master_of(cluster: LocalCluster, admin: ClusterAdmin) -> str:
    """Wait until all replicas are in sync; return the name of the master's process."""
    address = wait_until_whole(admin)
    return next(each for each, at in cluster.brokers.items() if at == address)


def measure(turns: int) -> dict[str, Any]:
    killed: list[float] = []
    handed: list[float] = []
    stopped: list[float] = []
    slave_stopped: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        cluster = LocalCluster(1, 3, directory, "sync", replicas=3)
        with cluster, ClusterAdmin(cluster.nameservers) as admin:
            admin.topics.create(TOPIC, CreateTopicRequest(1, 1), wait_ms=10_000)
            sender = Sender(cluster.nameservers)
            try:
                time.sleep(2)
                usual = sorted(b - a for a, b in itertools.pairwise(sender.acks))
                for _ in range(turns):
                    wait_until_whole(admin)
                    handed.append(
                        sender.longest_pause(time.monotonic(), lambda: admin.replicas.hand_over(GROUP))
                    )
                    master = master_of(cluster, admin)
                    name = next(each for each in cluster.brokers if each != master)
                    slave_stopped.append(
                        sender.longest_pause(time.monotonic(), lambda name=name: cluster.restart(name))  # type: ignore[misc]
                    )
                    name = master_of(cluster, admin)
                    stopped.append(
                        sender.longest_pause(time.monotonic(), lambda name=name: cluster.restart(name))  # type: ignore[misc]
                    )
                    name = master_of(cluster, admin)
                    killed.append(
                        sender.longest_pause(time.monotonic(), lambda name=name: cluster.kill(name))  # type: ignore[misc]
                    )
                    cluster.restart(name)
            finally:
                sender.close()
    return {
        "send_p50_s": statistics.median(usual),
        "killed_s": killed, "handover_s": handed, "stopped_s": stopped,
        "slave_stopped_s": slave_stopped,
        "killed_p50_target_s": KILLED_P50_S, "killed_max_target_s": KILLED_MAX_S,
        "handover_target_s": HANDOVER_S,
    }  # fmt: skip


def main() -> None:
    chosen = options("failover", "Kill the master of a group, and have it hand over.", turns=5)
    introduce("failover")
    found = measure(chosen.turns)
    for what, times, middle_target, target in (
        ("master killed", found["killed_s"], KILLED_P50_S, KILLED_MAX_S),
        ("handed over", found["handover_s"], HANDOVER_S, HANDOVER_S),
        ("stopped", found["stopped_s"], HANDOVER_S, HANDOVER_S),
        ("slave stopped", found["slave_stopped_s"], HANDOVER_S, HANDOVER_S),
    ):
        worst, middle = max(times), statistics.median(times)
        verdict = "met" if worst <= target and middle <= middle_target else "MISSED"
        p50, longest = (
            f"p50 {middle:5.2f} s (target {middle_target} s)",
            f"max {worst:5.2f} s (target {target} s)",
        )
        say(f"{what:14} {p50}   {longest}   {len(times)} turns   {verdict}")
    say(f"a send while all is well: {1000 * found['send_p50_s']:.1f} ms")
    report("failover", chosen, found)


if __name__ == "__main__":
    main()
