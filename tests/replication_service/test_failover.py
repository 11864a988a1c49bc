"""Real brokers that replicate: nothing that was acknowledged is lost, and writing goes on, whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import Etcd, without_etcd
from tests.support.replicated_run import (
    STRIKES,
    ReplicatedRun,
    kill_master,
    lose_disk_of_master,
    pause_master,
    rolling_restart,
)


@pytest.fixture(params=["nameservers", pytest.param("etcd", marks=without_etcd)])
def etcd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an etcd that keeps the register, or nothing: then the NameServers keep it."""
    if request.param == "nameservers":
        yield ""
        return
    member = Etcd(tmp_path)
    member.start()
    yield member.address
    member.stop()


def test_messages_survive_the_loss_of_one_master_after_another(tmp_path: Path, etcd: str) -> None:
    with ReplicatedRun(tmp_path, seed=1, nameservers=1, etcd=etcd) as run:
        strikes = (kill_master,) if etcd else (lose_disk_of_master, pause_master)
        for strike in strikes:
            run.live(strike)
        assert run.status().epoch > len(strikes)
        run.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rolling_restart_under_load_fails_no_send(tmp_path: Path) -> None:
    with ReplicatedRun(tmp_path, seed=2, nameservers=1) as run:
        run.live(rolling_restart)
        run.check()
        assert not run.failures


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 15))
def test_thirty_faults_lose_nothing_acknowledged(tmp_path: Path, seed: int, etcd: str) -> None:
    with ReplicatedRun(tmp_path, seed, etcd=etcd) as run:
        for _ in range(30):
            run.live(run.rng.choice(STRIKES))
        run.check()
