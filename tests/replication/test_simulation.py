"""The replication protocol under random faults: no invariant breaks, and each broken rule is found."""

from __future__ import annotations

import pytest

from rocketq.model import FlushMode
from tests.replication.mutants import MUTANTS, Mutant
from tests.replication.simulation import Setting, run

#: Seeds of one slow test; 18 of them are 4,500.
CHUNK = 250


def faults(seeds: range, flush: FlushMode) -> dict[int, str]:
    """Return what went wrong, by seed."""
    return {seed: why for seed in seeds if (why := run(seed, Setting(flush=flush)))}


@pytest.mark.parametrize(("flush", "count"), [(FlushMode.SYNC, 80), (FlushMode.ASYNC, 40)])
def test_no_acknowledged_message_is_lost_whatever_fails(flush: FlushMode, count: int) -> None:
    assert faults(range(count), flush) == {}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(1_000, 1_000 + 12 * CHUNK, CHUNK))
def test_thousands_of_runs_under_sync_flush_keep_every_invariant(first: int) -> None:
    assert faults(range(first, first + CHUNK), FlushMode.SYNC) == {}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(1_000, 1_000 + 6 * CHUNK, CHUNK))
def test_thousands_of_runs_under_async_flush_keep_every_invariant(first: int) -> None:
    assert faults(range(first, first + CHUNK), FlushMode.ASYNC) == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulation_finds_a_broken_rule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes on for some seeds, because a change of the code gives each seed another course."""
    mutant.breaks(monkeypatch)
    seeds = range(mutant.seed, mutant.seed + 100)
    assert any(run(seed, Setting(flush=mutant.flush)) for seed in seeds)
