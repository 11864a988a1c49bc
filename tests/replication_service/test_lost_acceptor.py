"""A NameServer that lost the disk with its registers is replaced as docs/replication.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient

GROUP = "broker-a"


def epoch_after_handover(admin: ClusterAdmin) -> int:
    wait_until(lambda: 0 in admin.replicas.addresses(GROUP) and admin.replicas.standings(GROUP).is_whole)
    return admin.replicas.hand_over(GROUP)


@pytest.mark.slow
def test_a_replaced_acceptor_counts_again_and_the_register_forgets_nothing(tmp_path: Path) -> None:
    with (
        LocalCluster(1, 3, tmp_path, replicas=3) as cluster,
        ClusterAdmin(cluster.nameservers) as admin,
        PatientClient(cluster.nameservers) as client,
    ):
        lost, other, _ = (name for name in cluster.names if name.startswith("nameserver"))
        client.producer().send("orders", b"before")
        before = epoch_after_handover(admin)
        cluster.kill(lost)
        shutil.rmtree(tmp_path / lost)
        # Both acceptors that are left take part in this change, so both have the newest record.
        meanwhile = epoch_after_handover(admin)
        assert meanwhile > before
        # Its directory is empty, so the cluster starts it with --register-new.
        cluster.restart(lost)
        # The replaced acceptor and one of the two others are a majority.
        cluster.kill(other)
        assert epoch_after_handover(admin) > meanwhile
        assert client.producer().send("orders", b"after").status.name == "SEND_OK"
