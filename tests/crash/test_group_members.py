"""Members of a consumer group as processes that are killed, stopped and started: nothing is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rocketq import Client, LocalCluster, MessageQueue
from tests.client.consuming.groups_support import fill
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient

Handled = dict[MessageQueue, list[int]]


class Members:
    """The member processes of one group."""

    def __init__(
        self, cluster: LocalCluster, topic: str, directory: Path, *options: str, group: str | None = None
    ) -> None:
        self.group = group or f"{topic}-group"
        self._arguments = [cluster.nameservers[0], topic, self.group]
        self._options, self._directory = options, directory
        self.running: list[subprocess.Popen[str]] = []
        self.files: list[Path] = []

    def start(self) -> subprocess.Popen[str]:
        """Start a member and wait until it has joined."""
        self.files.append(self._directory / f"member-{len(self.files)}")
        module = "tests.support.member_process"
        process = subprocess.Popen(
            [sys.executable, "-m", module, *self._arguments, str(self.files[-1]), *self._options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.running.remove(process)
        process.kill()
        self._reap(process)

    def end(self, process: subprocess.Popen[str]) -> None:
        """End a member in good order."""
        self.running.remove(process)
        process.communicate("\n", timeout=60)

    def close(self) -> None:
        for process in self.running:
            process.kill()
            self._reap(process)

    def handled(self) -> list[Handled]:
        """Return what each member handled, in its order."""
        found = []
        for file in self.files:
            queues: Handled = defaultdict(list)
            for line in file.read_text().splitlines():
                topic, broker, queue, offset, _ = line.split()
                queues[MessageQueue(topic, broker, int(queue))].append(int(offset))
            found.append(queues)
        return found

    def covered(self) -> int:
        """Return how many different messages were handled."""
        return len({(q, o) for queues in self.handled() for q, offsets in queues.items() for o in offsets})

    def have_covered(self, count: int) -> bool:
        return self.covered() == count

    def _reap(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


@pytest.mark.parametrize("options", [[], ["--ordered"]], ids=["concurrent", "ordered"])
def test_what_a_killed_member_had_goes_to_the_others(
    cluster: LocalCluster, mq: Client, topic: str, tmp_path: Path, options: list[str]
) -> None:
    fill(mq, topic, 2_000, queues=3)
    members = Members(cluster, topic, tmp_path, *options)
    try:
        first, _ = members.start(), members.start()
        wait_until(lambda: members.covered() >= 1_000)
        fill(mq, topic, 2_000, first=2_000)
        members.kill(first)
        wait_until(lambda: members.covered() == 4_000)
        for queues in members.handled():
            for offsets in queues.values():
                assert not options or offsets == sorted(offsets), "no queue goes backwards at a member"
        members.end(members.running[0])
        with mq.consumer(f"{topic}-group", [topic], ordered=bool(options)) as consumer:
            assert sum(consumer.lag().values()) == 0
    finally:
        members.close()


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 16], ids=["dead", "retried"])
def test_messages_that_fail_at_members_and_brokers_that_are_killed_are_not_lost(
    topic: str, tmp_path: Path, retries: int
) -> None:
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as mq:
        mq.groups.set(f"{topic}-group", retries_max=retries)
        fill(mq, topic, 3_000, queues=3)
        members = Members(cluster, topic, tmp_path, "--failing", "--session-timeout-ms", "3000")

        def settled() -> int:
            dead = {letter.message_id for letter in mq.dead_letters(f"{topic}-group").list()}
            done = {
                f"{queue.broker}:{queue.topic}:{queue.queue}:{offset}"
                for queues in members.handled()
                for queue, offsets in queues.items()
                for offset in offsets
            }
            return len(dead | done)

        try:
            first, _ = members.start(), members.start()
            wait_until(lambda: members.covered() >= 300)
            members.kill(first)
            cluster.kill("broker-a")
            cluster.restart("broker-a")
            members.start()
            wait_until(lambda: settled() == 3_000)
        finally:
            members.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_members_at_random_killed_stopped_and_started_lose_nothing(
    cluster: LocalCluster, mq: Client, topic: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    sent = 0
    members = Members(cluster, topic, tmp_path, "--session-timeout-ms", "3000")
    try:
        for _ in range(3):
            fill(mq, topic, 500, first=sent, queues=4)
            sent += 500
            members.start()
        for _ in range(12):
            fill(mq, topic, 500, first=sent)
            sent += 500
            chosen = rng.choice(members.running)
            match rng.choice(["kill", "end", "start", "stop"]):
                case "kill" if len(members.running) > 1:
                    members.kill(chosen)
                case "end" if len(members.running) > 1:
                    members.end(chosen)
                case "stop" if len(members.running) > 1:
                    # The others get its queues, and it must find that out when it goes on.
                    chosen.send_signal(signal.SIGSTOP)
                    wait_until(partial(members.have_covered, sent))
                    chosen.send_signal(signal.SIGCONT)
                case _:
                    members.start()
        wait_until(lambda: members.covered() == sent)
    finally:
        members.close()
