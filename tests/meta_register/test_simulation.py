"""The register under random faults: its history is that of one register, and each broken rule is found."""

from __future__ import annotations

import pytest

from tests.meta_register.mutants import MUTANTS, Mutant
from tests.meta_register.simulation import RegisterSimulation


def faults(seeds: range) -> dict[int, str]:
    return {seed: why for seed in seeds if (why := RegisterSimulation(seed).run())}


def test_all_calls_are_those_of_one_register_whatever_fails() -> None:
    assert faults(range(80)) == {}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(1_000, 4_000, 500))
def test_thousands_of_histories_are_those_of_one_register(first: int) -> None:
    assert faults(range(first, first + 500)) == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulation_finds_a_broken_rule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes on for some seeds, because a change of the code gives each seed another course."""
    mutant.breaks(monkeypatch)
    assert any(RegisterSimulation(seed).run() for seed in range(mutant.seed, mutant.seed + 1_000))


def test_most_calls_are_answered_although_acceptors_crash() -> None:
    simulation = RegisterSimulation(3)
    assert simulation.run() == ""
    assert simulation.crashes > 10
    answered = [record for record in simulation.history if record.found is not None]
    assert len(answered) > len(simulation.history) // 4
    assert any(record.change.expected is not None and not record.is_refused for record in answered)
