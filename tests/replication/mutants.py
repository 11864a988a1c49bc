"""The product's rules with one of them broken: the simulation must find each of these.

A mutant replaces methods or functions of the product while it runs. Most are faults that a real system had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from rocketq.model import FlushMode
from rocketq_broker.epoch_lineage import EpochLineage
from rocketq_broker.replication import incarnation, record_changes, replica
from rocketq_broker.replication.fetching import Diverged
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.replica import KeepStanding, Replica
from rocketq_broker.replication.slave_role import SlaveRole
from tests.replication.simulated_broker import SimBroker
from tests.replication.simulation import Simulation

Breaking = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule, under which flush mode it shows, and a seed from which on it soon does."""

    name: str
    breaks: Breaking
    seed: int
    flush: FlushMode = FlushMode.SYNC


def _no_union(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterRole, "counted", property(lambda self: self.registered))


def _early_shrink(patch: pytest.MonkeyPatch) -> None:
    def counted(self: MasterRole) -> Any:
        is_shrinking = self.proposed and self.proposed < self.registered
        return self.proposed if is_shrinking else self.registered | self.proposed

    patch.setattr(MasterRole, "counted", property(counted))


def _cut_to_confirmed(patch: pytest.MonkeyPatch) -> None:
    def followed(simulation: Simulation, broker: SimBroker) -> None:
        ends = [broker.log.lineage.begin, *broker.log.by_end]
        end = max(end for end in ends if end <= max(broker.replica.confirmed.end, ends[0]))
        broker.log.cut(end)

    _bare_offset(patch)
    patch.setattr(Simulation, "followed", followed)


def _no_start_check(patch: pytest.MonkeyPatch) -> None:
    def may_join(self: MasterRole, replica: Any, confirmed: int, now_ms: int) -> bool:
        return replica not in self.counted and self.held_by(replica) >= confirmed

    patch.setattr(MasterRole, "may_join", may_join)


def _confirmed_by_master_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterRole, "confirm_offset", lambda self, own, confirmed: max(own, confirmed))


def _anybody_is_elected(patch: pytest.MonkeyPatch) -> None:
    def elected(record: Any, candidate: Any) -> Any:
        after = record_changes.elected_uncleanly(record, candidate)
        return structs.replace(after, unclean_epoch=0)

    patch.setattr(replica.record_changes, "elected", elected)


def _dirty_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "readable_end", 1 << 60)


def _eligible_for_ever(patch: pytest.MonkeyPatch) -> None:
    def eligible_after(record: Any, in_sync: Any) -> Any:
        left = record.in_sync if len(in_sync) < record.min_in_sync else frozenset()
        return (record.eligible | left) - in_sync

    patch.setattr(record_changes, "eligible_after", eligible_after)
    for module in ("tests.replication.invariants", "rocketq_broker.replication.group_record"):
        patch.setattr(f"{module}.fault_of", lambda record: "")
    patch.setattr(record_changes, "fault_of_change", lambda before, after: "")


def _same_incarnation(patch: pytest.MonkeyPatch) -> None:
    real = incarnation.broken_promise
    patch.setattr(incarnation, "broken_promise", lambda facts: real(facts) if not facts.incarnation else "")


def _wiped_keeps_its_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimBroker, "new_incarnation", lambda self: f"{self.number}.0")


def _late_cut(patch: pytest.MonkeyPatch) -> None:
    real = SlaveRole.is_current

    def is_current(self: SlaveRole, answer: Any, log: Any) -> bool:
        is_cut = isinstance(answer, Diverged) and answer.place.epoch == self.epoch
        return is_cut or real(self, answer, log)

    patch.setattr(SlaveRole, "is_current", is_current)


def _bare_offset(patch: pytest.MonkeyPatch) -> None:
    def matches(self: EpochLineage, offset: int, epoch: int, log_end: int) -> bool:
        return self.begin <= offset <= log_end

    patch.setattr(EpochLineage, "matches", matches)


def _resumes_its_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "may_begin", lambda self, epoch: True)


def _acknowledges_before_sync(patch: pytest.MonkeyPatch) -> None:
    real = Replica.fetch

    def fetch(self: Replica, log: Any) -> Any:
        made = real(self, log)
        return made and replace(made, held=log.end)

    patch.setattr(Replica, "fetch", fetch)


def _confirms_before_own_sync(patch: pytest.MonkeyPatch) -> None:
    real = MasterRole.confirm_offset
    patch.setattr(MasterRole, "confirm_offset", lambda self, own, confirmed: real(self, 1 << 60, confirmed))


def _proposal_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Take a proposal for settled as soon as it is repeated: its answer must have been lost."""

    def asking_again(self: Replica) -> Any:
        return ()

    real = Replica.synced

    def synced(self: Replica, log: Any) -> Replica:
        role = self.role
        if isinstance(role, MasterRole):
            return real(replace(self, asked=None, role=replace(role, proposed=frozenset())), log)
        return real(self, log)

    patch.setattr(Replica, "asking_again", asking_again)
    patch.setattr(Replica, "synced", synced)


def _epoch_not_kept(patch: pytest.MonkeyPatch) -> None:
    real = Simulation.perform

    def perform(self: Simulation, broker: SimBroker, effects: Any) -> None:
        real(self, broker, [each for each in effects if not isinstance(each, KeepStanding)])

    patch.setattr(Simulation, "perform", perform)


def _confirms_with_too_few(patch: pytest.MonkeyPatch) -> None:
    real = MasterRole.confirm_offset

    def confirm_offset(self: MasterRole, own: int, confirmed: int) -> int:
        return real(replace(self, min_in_sync=1), own, confirmed)

    patch.setattr(MasterRole, "confirm_offset", confirm_offset)


def _cuts_inside_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """A slave cuts at the master's place although it does not have the master's epoch there."""
    real = SlaveRole.step

    def step(self: SlaveRole, answer: Any, log: Any, confirmed: Any) -> Any:
        done = real(self, answer, log, confirmed)
        if isinstance(answer, Diverged) and hasattr(done, "end"):
            end = min(answer.keep, log.lineage.end_of(answer.keep_epoch, log.end))
            return replace(done, end=end) if end >= log.begin else done
        return done

    patch.setattr(SlaveRole, "step", step)


ASYNC = FlushMode.ASYNC
MUTANTS = (
    Mutant("the one who is to join does not count before the answer", _no_union, 0),
    Mutant("the one who is to leave does not count before the answer", _early_shrink, 0),
    Mutant("a slave cuts to its confirmed end", _cut_to_confirmed, 0),
    Mutant("a replica joins that does not reach the begin of the epoch", _no_start_check, 5),
    Mutant("the master confirms alone", _confirmed_by_master_alone, 0),
    Mutant("any member is elected", _anybody_is_elected, 0),
    Mutant("readers see what is not confirmed", _dirty_reads, 0),
    Mutant("eligible replicas stay eligible", _eligible_for_ever, 0),
    Mutant("async flush without a new incarnation", _same_incarnation, 20, ASYNC),
    Mutant("an emptied disk keeps its place", _wiped_keeps_its_place, 1),
    Mutant("a late answer cuts", _late_cut, 0),
    Mutant("an offset without its epoch acknowledges", _bare_offset, 0),
    Mutant("a master resumes its epoch after a restart", _resumes_its_epoch, 5),
    Mutant("a slave acknowledges before its sync", _acknowledges_before_sync, 0),
    Mutant("the master confirms before its own sync", _confirms_before_own_sync, 6),
    Mutant("a proposal without an answer is forgotten", _proposal_forgotten, 0),
    Mutant("the epoch is not on disk when it is spoken", _epoch_not_kept, 0),
    Mutant("the master confirms with too few in sync", _confirms_with_too_few, 5),
    Mutant("a slave cuts inside an epoch", _cuts_inside_an_epoch, 52),
)
