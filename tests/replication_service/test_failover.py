"""Real brokers that replicate: nothing that was acknowledged is lost, and writing goes on, whoever dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.replicated_run import (
    STRIKES,
    ReplicatedRun,
    kill_master,
    pause_master,
)


def test_messages_survive_the_loss_of_one_master_after_another(tmp_path: Path) -> None:
    with ReplicatedRun(tmp_path, seed=1) as run:
        for strike in (kill_master, pause_master):
            run.live(strike)
        assert run.status().epoch >= 3
        run.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 15))
def test_thirty_faults_lose_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    with ReplicatedRun(tmp_path, seed) as run:
        for _ in range(30):
            run.live(run.rng.choice(STRIKES))
        run.check()
