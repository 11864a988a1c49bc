"""Exactly once on executors of their own: they are killed, given up while they write, or race each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pyspark_rocketq.connections import connection_to
from rocketq import LocalCluster
from rocketq.protocol.documents.sinks import StageDescription
from rocketq.sinks.coordinator_lookup import Coordinators
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient
from tests.support.sink_faults import Fault, Harm, Point
from tests.support.sink_query import Shape
from tests.support.sink_trials import Bench, DriverCourse, Life, Trial
from tests.support.spark_cluster import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

#: A stage that was quiet so long is asked about, so that what nobody named goes while a test waits.
CHECK_MS: Final = "500"
#: Attempts that Spark allows a task on a cluster.
ATTEMPTS: Final = 4
#: Batches of a query, and tasks of each that copies: one for every queue, two of them at a time.
BATCHES: Final = 4
TASKS: Final = 4


@pytest.fixture(scope="module")
def bench(spark: SparkSession) -> Iterator[Bench]:
    with (
        LocalCluster(brokers=2, broker_arguments=["--sink-check-ms", CHECK_MS]) as cluster,
        PatientClient(cluster.nameservers) as client,
    ):
        yield Bench(cluster, spark, client).prepare()


def stages(bench: Bench) -> list[StageDescription]:
    """What is staged and undecided, of all sinks on all brokers."""
    connection = connection_to(tuple(bench.cluster.nameservers))
    brokers = Coordinators(connection.transport, connection.routes).brokers()
    return [stage for broker in brokers for sink in broker.sinks().sinks for stage in sink.stages]


def killed(point: Point, batch: int, partition: int = -1, times: int = 1) -> Fault:
    return Fault(point, Harm.KILL_EXECUTOR, batch, times=times, partition=partition)


NAMED: Final = {
    "copy": Trial(
        0,
        Shape.COPY,
        (
            Life(
                (
                    # Half of the tasks are through.
                    killed(Point.TASK_BEGINS, 0, 3),
                    killed(Point.TASK_MIDDLE, 1, 0),
                    # All is staged, and the driver does not know.
                    killed(Point.TASK_ENDS, 2, 3),
                    # All tasks are through, and nothing is decided.
                    killed(Point.COMMIT_BEGINS, 3),
                )
            ),
        ),
        place=Place.WORKERS,
    ),
    "shuffle": Trial(
        1,
        Shape.DISTINCT,
        (
            Life((killed(Point.TASK_BEGINS, 0), killed(Point.TASK_MIDDLE, 1, 1, times=ATTEMPTS))),
            Life((killed(Point.TASK_ENDS, 1, 1), killed(Point.COMMIT_ENDS, 2)), loses_commit=True),
        ),
        place=Place.WORKERS,
    ),
    "transaction": Trial(
        2,
        Shape.COUNTS,
        (Life((killed(Point.COMMIT_BEGINS, 1), killed(Point.COMMIT_ENDS, 2))),),
        place=Place.WORKERS,
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_every_row_is_written_once_when_executors_are_killed(bench: Bench, tmp_path: Path, name: str) -> None:
    verdict = DriverCourse(bench, NAMED[name], tmp_path).run()
    assert verdict.holds, verdict
    assert verdict.struck == NAMED[name].laid, "something was not broken that should have been"
    wait_until(lambda: not stages(bench))


def test_the_trials_see_what_a_killed_executor_sent_twice(bench: Bench, tmp_path: Path) -> None:
    life = Life((killed(Point.TASK_ENDS, 0, 0),))
    trial = Trial(0, Shape.COPY, (life,), "at-least-once", Place.WORKERS)
    verdict = DriverCourse(bench, trial, tmp_path).run()
    assert verdict.duplicates
    assert not verdict.missing


def drawn(seed: int) -> Trial:
    """Return a trial in which every batch loses an executor, some two, at points that it surely reaches."""
    rng = random.Random(seed)
    shape = rng.choice((Shape.COPY, Shape.DISTINCT))
    in_tasks = [Point.TASK_BEGINS, Point.TASK_MIDDLE, Point.TASK_ENDS]
    faults = []
    for batch in range(BATCHES):
        for point in rng.sample([*in_tasks, Point.COMMIT_BEGINS, Point.COMMIT_ENDS], rng.choice((1, 1, 2))):
            has_its_task = shape is Shape.COPY and point in in_tasks
            faults.append(killed(point, batch, rng.randrange(TASKS) if has_its_task else -1))
    return Trial(seed, shape, (Life(tuple(faults), loses_commit=rng.random() < 0.5),), place=Place.WORKERS)


@pytest.mark.parametrize("seed", range(10, 15))
def test_every_row_is_written_once_when_executors_are_killed_anywhere(
    bench: Bench, tmp_path: Path, seed: int
) -> None:
    verdict = DriverCourse(bench, drawn(seed), tmp_path).run()
    assert verdict.holds, (seed, verdict)
    assert verdict.struck == drawn(seed).laid, "something was not broken that should have been"
    wait_until(lambda: not stages(bench))


def test_what_a_lost_executor_goes_on_to_write_is_never_seen(bench: Bench, tmp_path: Path) -> None:
    late = (
        # The driver sees the executor die, and has the task done elsewhere; the task's worker lives on.
        Fault(Point.TASK_MIDDLE, Harm.ORPHAN, 1, "committed", partition=0, attempt=0),
        # When the batch is committed and published, the worker stages the other half of its rows,
        Fault(Point.COMMIT_ENDS, Harm.RING, 1, "committed"),
        Fault(Point.TASK_ENDS, Harm.RING, 1, "late", partition=0, attempt=0),
        # which the next commit comes after.
        Fault(Point.COMMIT_BEGINS, Harm.WAIT, 2, "late"),
    )
    trial = Trial(0, Shape.COPY, (Life(late),), place=Place.WORKERS)
    verdict = DriverCourse(bench, trial, tmp_path).run()
    assert (verdict.holds, verdict.cut_short) == (True, 0), verdict
    assert verdict.struck == trial.laid
    wait_until(lambda: not stages(bench))


def raced(delivery: str) -> Trial:
    both_write_all = (
        Fault(Point.TASK_ENDS, Harm.WAIT, 0, "copied", partition=0, attempt=0),
        Fault(Point.TASK_ENDS, Harm.RING, 0, "copied", partition=0, attempt=1),
    )
    # This one nobody wakes: Spark kills it when its copy is through.
    stuck_in_the_middle = Fault(Point.TASK_MIDDLE, Harm.WAIT, 1, "nothing", partition=1, attempt=0)
    life = Life((*both_write_all, stuck_in_the_middle))
    return Trial(0, Shape.COPY, (life,), delivery, Place.SPECULATING)


def test_of_two_attempts_at_a_time_one_is_written(bench: Bench, tmp_path: Path) -> None:
    exact = DriverCourse(bench, raced("exactly-once"), tmp_path / "exact").run()
    assert (exact.holds, exact.cut_short) == (True, 0), exact
    assert exact.struck == raced("exactly-once").laid
    wait_until(lambda: not stages(bench))
    loose = DriverCourse(bench, raced("at-least-once"), tmp_path / "loose").run()
    assert loose.duplicates, "the trial would not see any"
    assert not loose.missing
