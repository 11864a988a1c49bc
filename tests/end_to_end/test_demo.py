"""The demo does what it says, and its proof notices everything it claims to rule out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_rocketq.demo import flights as data
from pyspark_rocketq.demo.proof import Proof, prove
from rocketq import LocalCluster
from tests.support.patience import PatientClient

COUNT = 500


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return data.load(COUNT)


def proof_of(
    spark: SparkSession, cluster: LocalCluster, topic: str, flights: pd.DataFrame, sent: pa.Table
) -> Proof:
    with PatientClient(cluster.nameservers) as client, client.producer() as producer:
        client.create_topic(topic, queues=2)
        producer.send_batch(topic, sent, ordering_key="key")
    return prove(spark, cluster.nameservers, COUNT, data.sums(flights), topic)


@pytest.mark.spark
def test_the_demo_proves_delivery_and_names_next_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rocketq.cli.main", "demo", "--flights", "5000"],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert "5,000 flights in, 5,000 messages out" in done.stdout
    assert "0 duplicates, 0 missing, 0 out of order" in done.stdout
    assert "PROVED" in done.stdout
    assert "NOT PROVED" not in done.stdout
    assert done.stdout.split("Next:")[1].count("rocketq ") == 3


@pytest.mark.spark
def test_the_proof_notices_flights_that_are_there_twice_missing_or_altered(
    spark: SparkSession, cluster: LocalCluster, topic: str, flights: pd.DataFrame
) -> None:
    altered = flights.copy()
    altered.loc[20, "distance"] += 1
    messages = data.messages(altered)
    missing = pa.concat_tables([messages.slice(0, 7), messages.slice(8), messages.slice(12, 1)])
    proof = proof_of(spark, cluster, topic, flights, missing)
    assert not proof.holds
    assert (proof.duplicates, proof.missing, proof.out_of_order) == (1, 1, 1)
    assert {flights["carrier"][7], flights["carrier"][20]} <= set(proof.wrong_carriers)


def test_every_count_alone_can_overturn_the_proof() -> None:
    good = Proof(3, 3, 3, 3, 0, 0, ())
    assert good.holds
    for changed in (
        {"sent": 4},
        {"read": 4},
        {"places": 2},
        {"flights": 2},
        {"missing": 1},
        {"out_of_order": 1},
        {"wrong_carriers": ("UA",)},
    ):
        assert not dataclasses.replace(good, **changed).holds


def test_messages_keep_every_flight_and_its_missing_values() -> None:
    flights = data.load(900)
    messages = data.messages(flights)
    assert messages.num_rows == 900
    assert messages["key"].null_count == flights["tailnum"].isna().sum()
    assert b'"dep_delay":null' in messages["body"][842 - 4].as_py()
    assert sum(found.flights for found in data.sums(flights).values()) == 900
