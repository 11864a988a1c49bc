"""Receivers as processes that come, go and are killed, and brokers that are killed: nothing is lost."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketq import Client, LocalCluster
from tests.client.consuming.groups_support import fill, lag
from tests.support.conditions import wait_until


class Received(NamedTuple):
    """One line of a receiver: a message, the number of its attempt, and the times around the call."""

    message: str
    attempt: int
    began_ms: int
    ended_ms: int


class Receivers:
    """The receiver processes of one group."""

    def __init__(self, cluster: LocalCluster, topic: str, directory: Path, invisible_ms: int) -> None:
        self._arguments = [cluster.nameservers[0], topic, f"{topic}-group"]
        self._invisible_ms, self._directory = invisible_ms, directory
        self.running: list[subprocess.Popen[str]] = []
        self._files: list[Path] = []

    def start(self) -> None:
        self._files.append(self._directory / f"receiver-{len(self._files)}")
        options = [str(self._files[-1]), "--invisible-ms", str(self._invisible_ms)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.receiver", *self._arguments, *options],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.running.append(process)

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.running.remove(process)
        process.kill()
        process.communicate()

    def close(self) -> None:
        for process in list(self.running):
            self.kill(process)

    def _lines(self) -> list[list[str]]:
        # A process that was killed may have left half a line.
        whole = [
            line for file in self._files for line in file.read_text().splitlines(True) if line[-1] == "\n"
        ]
        return [line.split() for line in whole]

    def received(self) -> list[Received]:
        return [
            Received(fields[1].rsplit(":", 1)[0], *map(int, fields[2:]))
            for fields in self._lines()
            if fields[0] == "R"
        ]

    def covered(self) -> int:
        """Return how many different messages were received."""
        return len({each.message for each in self.received()})

    def acknowledged(self) -> int:
        """Return how many different messages were acknowledged."""
        return len({fields[1].rsplit(":", 1)[0] for fields in self._lines() if fields[0] == "A"})


def check_history(received: list[Received], invisible_ms: int) -> None:
    """No attempt of a message was handed out twice, and none before the time of the one before was over."""
    attempts: dict[str, list[Received]] = defaultdict(list)
    for each in received:
        attempts[each.message].append(each)
    for own in attempts.values():
        own.sort(key=lambda each: each.attempt)
        assert len({each.attempt for each in own}) == len(own), own
        for before, after in pairwise(own):
            waited_ms = (after.attempt - before.attempt) * invisible_ms
            # The lease began within the first call, and the next one within the second.
            assert after.ended_ms >= before.began_ms + waited_ms, own


def test_each_message_is_handed_out_once_when_nothing_crashes(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    receivers = Receivers(cluster, topic, tmp_path, 600_000)
    with Client(cluster.nameservers) as mq:
        fill(mq, topic, 1_000, queues=2)
        try:
            for _ in range(3):
                receivers.start()
            wait_until(lambda: receivers.acknowledged() >= 1_000)
            fill(mq, topic, 1_000, first=1_000)
            wait_until(lambda: receivers.acknowledged() == 2_000)
        finally:
            receivers.close()
        received = receivers.received()
        assert len(received) == 2_000
        assert {each.attempt for each in received} == {1}
        assert lag(mq, f"{topic}-group") == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_killed_receivers_and_brokers_lose_nothing(topic: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sent = 0
    with (
        LocalCluster(brokers=2) as cluster,
        Client(cluster.nameservers) as mq,
    ):
        receivers = Receivers(cluster, topic, tmp_path, 2_000)
        try:
            for _ in range(3):
                fill(mq, topic, 500, first=sent, queues=2)
                sent += 500
                receivers.start()
            for _ in range(10):
                fill(mq, topic, 500, first=sent)
                sent += 500
                goal = sent - 300
                match rng.choice(["receiver", "receiver", "broker", "start"]):
                    case "receiver" if len(receivers.running) > 1:
                        receivers.kill(rng.choice(receivers.running))
                    case "broker":
                        name = rng.choice(["broker-a", "broker-b"])
                        cluster.kill(name)
                        cluster.restart(name)
                    case _:
                        receivers.start()
                wait_until(lambda goal=goal: receivers.covered() >= goal)
            # One that was killed behind an acknowledgement wrote no line of it: the group's offsets say.
            wait_until(lambda: receivers.covered() == sent and not lag(mq, f"{topic}-group"))
        finally:
            receivers.close()
        check_history(receivers.received(), 2_000)
