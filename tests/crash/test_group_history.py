"""One history over real processes: NameServers, brokers, a producer, members and receivers of four groups.

They are killed (SIGKILL), stopped (SIGSTOP, SIGCONT), ended and started at random, by a seed. Then
`tests.support.group_history` says whether any group lost a message, or an ordered one ran ahead.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from rocketq import Client, LocalCluster
from rocketq.errors import RocketqError
from tests.client.consuming.groups_support import fill
from tests.crash.test_group_members import Members
from tests.crash.test_receivers import Receivers, check_history
from tests.support.conditions import wait_until
from tests.support.group_history import Handling, Queue, badly_shared, lost, ran_ahead, twice
from tests.support.patience import PatientClient

INVISIBLE_MS: Final = 3_000
SESSION: Final = ("--session-timeout-ms", "3000")
QUEUES: Final = 2
MEMBERS_MAX: Final = 3
#: The pause between two looks, each of which makes calls and reads files.
LOOK_S: Final = 0.1


class Scene:
    """A cluster, and the processes of four groups that read one topic."""

    def __init__(self, cluster: LocalCluster, mq: Client, topic: str, directory: Path, *session: str) -> None:
        self.cluster, self.mq, self.topic, self._directory = cluster, mq, topic, directory
        self.sent = 0
        self.send(0)

        def members(kind: str, *options: str) -> Members:
            place = directory / kind
            place.mkdir()
            return Members(cluster, topic, place, *session, *options, group=f"{topic}-{kind}")

        self.shared = members("shared")
        self.ordered = members("ordered", "--ordered")
        self.broadcasting = members("broadcasting", "--broadcasting")
        (directory / "leased").mkdir()
        self.leased = Receivers(cluster, topic, directory / "leased", INVISIBLE_MS)
        self.groups = (self.shared, self.ordered)

    def send(self, count: int) -> None:
        fill(self.mq, self.topic, count, first=self.sent, queues=QUEUES)
        self.sent += count

    def close(self) -> None:
        for each in (self.shared, self.ordered, self.broadcasting, self.leased):
            each.close()

    # --- faults ------------------------------------------------------------------

    def fault(self, chance: random.Random) -> None:
        """Kill, stop, end or start one of the processes."""
        server = chance.choice(["broker-a", "broker-b", "nameserver-1", "nameserver-2"])
        group = chance.choice(self.groups)
        member = chance.choice(group.running)
        possible: list[Callable[[], object]] = [
            partial(self._restart, server), partial(self._pause, server), self.leased.start,
        ]  # fmt: skip
        if len(self.leased.running) > 1:
            possible.append(partial(self.leased.kill, chance.choice(self.leased.running)))
        if len(group.running) > 1:
            possible += [partial(f, member) for f in (group.kill, group.end, partial(self._stop, group))]
        if len(group.running) < MEMBERS_MAX:
            possible.append(group.start)
        chance.choice(possible)()

    def _restart(self, server: str) -> None:
        self.cluster.kill(server)
        self.cluster.restart(server)

    def _pause(self, server: str) -> None:
        """Stop a server until members have handled what the brokers that answer have."""
        elsewhere = {queue: end for queue, end in self.stored().items() if queue[0] != server}
        self.cluster.pause(server)
        try:
            wait_until(lambda: not lost(elsewhere, handled_by(*self.shared.files)), LOOK_S)
        finally:
            self.cluster.resume(server)

    def _stop(self, group: Members, chosen: subprocess.Popen[str]) -> None:
        """Stop a member until the others have its queues and all messages, and have it go on."""
        chosen.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: group.have_covered(self.sent), LOOK_S)
        finally:
            chosen.send_signal(signal.SIGCONT)

    # --- what came of it ---------------------------------------------------------

    def stored(self) -> dict[Queue, int]:
        described = self.mq.describe_topic(self.topic)
        return {(b, q): extent.max for b, one in described.items() for q, extent in enumerate(one.queues)}

    def is_shared_out(self, group: Members) -> bool:
        """Whether every queue of the topic has an owner that is a member now."""
        try:
            described = self.mq.groups.describe(group.group)
            stored = self.stored()
        except RocketqError:
            # A server that has just been started does not know everything yet.
            return False
        # A broker that has just been started knows members by their queues, until it hears of them.
        members = [each.member for one in described.values() for each in one.members]
        live = {each.client_id for each in members}
        owners: dict[Queue, str | None] = dict.fromkeys(stored)
        owners |= {
            (broker, queue.queue): queue.owner
            for broker, each in described.items()
            for queue in each.queues
            if queue.topic == self.topic
        }
        are_heard = all(each.heard for each in members) and len(live) == len(group.running)
        return are_heard and not badly_shared(owners, live)

    def is_settled(self) -> bool:
        everyone = [handled_by(file) for file in self.broadcasting.files]
        return (
            all(group.covered() == self.sent for group in self.groups)
            and self.leased.covered() == self.sent
            and not any(lost(self.stored(), each) for each in everyone)
        )


def handled_by(*files: Path) -> list[Handling]:
    found = []
    for file in files:
        for line in file.read_text().splitlines():
            _, broker, queue, offset, at_ns = line.split()
            found.append(Handling(int(at_ns), (broker, int(queue)), int(offset)))
    return found


def run_history(topic: str, directory: Path, seed: int, faults: int) -> None:
    chance = random.Random(seed)
    with (
        LocalCluster(brokers=2, nameservers=2, data_dir=directory / "cluster") as cluster,
        PatientClient(cluster.nameservers) as mq,
    ):
        scene = Scene(cluster, mq, topic, directory, *(SESSION if faults else ()))
        try:
            for each in (*scene.groups, *scene.groups, scene.broadcasting):
                each.start()
            scene.leased.start()
            for number in range(max(1, faults)):
                scene.send(200)
                if number < faults:
                    scene.fault(chance)
                for group in scene.groups:
                    wait_until(partial(scene.is_shared_out, group), LOOK_S)
            wait_until(scene.is_settled, LOOK_S)
        finally:
            scene.close()
        stored = scene.stored()
        assert sum(stored.values()) == scene.sent, "the producer repeats no message"
        for group in scene.groups:
            assert lost(stored, handled_by(*group.files)) == []
            if not faults:
                assert twice(handled_by(*group.files)) == []
        assert ran_ahead(handled_by(*scene.ordered.files)) == []
        check_history(scene.leased.received(), INVISIBLE_MS)


@pytest.mark.parametrize("seed", range(2))
def test_groups_lose_nothing_while_processes_are_killed_stopped_and_started(
    topic: str, tmp_path: Path, seed: int
) -> None:
    run_history(topic, tmp_path, seed, faults=2)


@pytest.mark.slow
def test_groups_handle_each_message_once_if_nothing_crashes(topic: str, tmp_path: Path) -> None:
    run_history(topic, tmp_path, seed=0, faults=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_groups_lose_nothing_in_long_histories(topic: str, tmp_path: Path, seed: int) -> None:
    run_history(topic, tmp_path, seed, faults=10)


# --- the checker ---------------------------------------------------------------------------

A, B = ("broker-a", 0), ("broker-b", 0)


def sound() -> list[Handling]:
    """Queue A with four messages, of which a member handled two again that it had not committed."""
    offsets = [(A, 0), (A, 1), (B, 0), (A, 2), (A, 1), (A, 2), (A, 3)]
    return [Handling(at, *each) for at, each in enumerate(offsets)]


def test_the_checker_passes_what_may_be() -> None:
    assert lost({A: 4, B: 1}, sound()) == []
    assert ran_ahead(sound()) == []
    assert badly_shared({A: "m", B: "n"}, ["m", "n"]) == []


def test_the_checker_sees_what_may_not_be() -> None:
    assert lost({A: 5, B: 1}, sound()) == [f"{A} at 4 was lost"]
    assert len(twice(sound())) == 2
    swapped = [*sound()[:1], *(Handling(after.at_ns, before.queue, before.offset) for after, before
               in pairwise([*sound()[1:], sound()[0]]))]  # fmt: skip
    assert ran_ahead(swapped)
    without_one = [each for each in sound() if each.offset != 1]
    assert ran_ahead(without_one) == [f"{A} at 2 was begun before 1"]
    assert badly_shared({A: "m", B: None}, ["m"]) == [f"{B} is owned by None"]
    assert badly_shared({A: "gone"}, ["m"]) == [f"{A} is owned by gone"]
