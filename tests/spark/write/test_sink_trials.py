"""Exactly once, whatever breaks: trials of seeded faults, each until its query ends well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketq import LocalCluster
from tests.support.patience import PatientClient
from tests.support.sink_faults import Fault, Harm, Point
from tests.support.sink_query import Shape
from tests.support.sink_trials import DRIVER, NAMED, Bench, Course, DriverCourse, Life, Trial, trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def bench(spark: SparkSession) -> Iterator[Bench]:
    with LocalCluster(brokers=2) as cluster, PatientClient(cluster.nameservers) as client:
        yield Bench(cluster, spark, client).prepare()


@pytest.mark.parametrize("seed", range(len(NAMED)))
def test_every_row_is_written_once_whatever_breaks(bench: Bench, tmp_path: Path, seed: int) -> None:
    verdict = Course(bench, trial(seed), tmp_path).run()
    assert verdict.holds, verdict
    assert verdict.struck == trial(seed).laid, "something was not broken that should have been"


def test_the_trials_see_duplicates_where_there_are_some(bench: Bench, tmp_path: Path) -> None:
    verdict = Course(bench, trial(len(NAMED) - 1, "at-least-once"), tmp_path).run()
    assert verdict.duplicates
    assert not verdict.missing


def killed_at(*points: Point) -> tuple[Life, ...]:
    """Lives that end with the driver's death at these points, each in the next batch."""
    return tuple(Life((Fault(point, Harm.KILL, batch, DRIVER),)) for batch, point in enumerate(points))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_row_is_written_once_when_the_driver_is_killed(bench: Bench, tmp_path: Path) -> None:
    lives = killed_at(Point.TASK_ENDS, Point.COMMIT_BEGINS, Point.COMMIT_ENDS)
    verdict = DriverCourse(bench, Trial(0, Shape.COPY, lives), tmp_path / "exact").run()
    assert (len(verdict.struck), verdict.holds) == (3, True), verdict
    lives = killed_at(Point.COMMIT_ENDS)
    verdict = DriverCourse(bench, Trial(0, Shape.COPY, lives, "at-least-once"), tmp_path / "loose").run()
    assert verdict.duplicates, "the trial would not see any"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(len(NAMED), 210, 20))
def test_every_row_is_written_once_under_seeded_faults(bench: Bench, tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 20):
        verdict = Course(bench, trial(seed), tmp_path / str(seed)).run()
        assert verdict.holds, (seed, verdict)
