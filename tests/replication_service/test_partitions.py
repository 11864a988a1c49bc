"""Real brokers whose network is cut: one master acknowledges at a time, and what was read stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.office_history import Acknowledged, violations
from tests.support.partitioned_run import PartitionedRun, cut_off_from_one, cut_off_master, cut_off_slave
from tests.support.replicated_run import kill_master, kill_slave

DIRECTIONS = ("both", "out", "in")
CUTS = (
    *(cut_off_master(peers, each) for peers in ("slaves", "nameservers", "both") for each in DIRECTIONS),
    *(cut_off_from_one(each) for each in DIRECTIONS),
    *(cut_off_slave(each) for each in DIRECTIONS),
)


def test_a_master_that_is_cut_off_acknowledges_nothing_and_is_replaced(tmp_path: Path) -> None:
    with PartitionedRun(tmp_path, seed=1, nameservers=1) as run:
        run.live(cut_off_master("both", "both"))
        run.live(cut_off_master("slaves", "out"))
        run.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20, 26))
def test_no_cut_of_the_network_lets_two_masters_acknowledge(tmp_path: Path, seed: int) -> None:
    with PartitionedRun(tmp_path, seed) as run:
        for cut in run.rng.sample(CUTS, len(CUTS)):
            run.live(cut)
        run.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(26, 30))
def test_masters_that_are_cut_off_or_die_by_turns_lose_nothing(tmp_path: Path, seed: int) -> None:
    with PartitionedRun(tmp_path, seed) as run:
        for _ in range(8):
            run.live(run.rng.choice(CUTS))
            run.live(run.rng.choice((kill_master, kill_slave)))
        run.check()


# --- the checker ---------------------------------------------------------------------------


def acknowledged(broker: str, offset: int, begun: int, answered: int) -> Acknowledged:
    return Acknowledged(broker, (0, offset), begun, answered)


def test_the_checker_passes_one_master_after_the_other() -> None:
    # The second message was under way when the next master acknowledged its first one.
    acks = [acknowledged("a", 0, 1, 2), acknowledged("a", 1, 3, 9), acknowledged("b", 2, 4, 5)]
    assert violations(acks, {(0, 0): 1, (0, 1): 1, (0, 2): 2}) == []


def test_the_checker_sees_two_masters_of_one_epoch() -> None:
    acks = [acknowledged("a", 0, 1, 2), acknowledged("b", 1, 3, 4)]
    assert violations(acks, {(0, 0): 1, (0, 1): 1}) == ["epoch 1 has two masters: a, b"]


def test_the_checker_sees_a_former_master_that_goes_on() -> None:
    acks = [acknowledged("b", 0, 1, 2), acknowledged("a", 1, 3, 4)]
    (found,) = violations(acks, {(0, 0): 2, (0, 1): 1})
    assert found.startswith("late: ")
