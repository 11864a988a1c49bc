"""Finds damaged parts of a replica's log, and has them healed from other members, on a thread of its own.

Damage is found in two ways. A read that meets a damaged frame names its place here (`suspect`), and so does a
slave that got damaged frames. And the *scrub* reads the confirmed log from its begin to its end, at every
interval: an old segment may rot for years before anybody reads it, and then the other members may have lost
it, too. After each step the scrub rests, so that it takes a twentieth of one core and of the disk.

A part that nobody could heal is tried again, since the member that has it may be away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from rocketq.clock import Clock
from rocketq.errors import CorruptFrame
from rocketq_broker.replication.replica import Replica
from rocketq_broker.replication_service.member_ranges import MemberRanges, others
from rocketq_broker.store.errors import SegmentGone
from rocketq_broker.store.replica.operations import ReplicaOperations

#: One step of the scrub, and how many times as long as it took is rested after it.
STEP_BYTES: Final = 4 * 1024 * 1024
REST: Final = 19
#: After a start the first scrub does not wait for longer: a broker may be restarted more often than that.
FIRST_SCRUB_MS_MAX: Final = 600_000
#: A part that was not healed is tried again after this, and suspicions are looked at no more often.
AGAIN_MS: Final = 5_000
LOOK_MS: Final = 200

#: Told whether a suspected frame is sound now.
Done = Callable[[bool], None]

log = structlog.get_logger("rocketq.broker.replica")


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of damage since the start; replaced as a whole."""

    #: What was found at the begin of each part that is damaged.
    damaged: Mapping[int, str] = field(default_factory=dict)
    healed: int = 0
    healed_bytes: int = 0
    scrubbed_bytes: int = 0


@dataclass(slots=True)
class _Suspicion:
    """What is said of a frame, and who waits for the outcome."""

    why: str
    waiting: list[Done] = field(default_factory=list)


class LogHealer:
    """The healer of one replica, from `start` to `stop`."""

    def __init__(
        self,
        operations: ReplicaOperations,
        replica: Callable[[], Replica],
        ranges: MemberRanges,
        clock: Clock,
        scrub_ms: int,
    ) -> None:
        """`scrub_ms` is the interval of the scrub; 0: there is none."""
        self._operations = operations
        self._replica = replica
        self._ranges = ranges
        self._clock = clock
        self._scrub_ms = scrub_ms
        self._suspects: dict[int, _Suspicion] = {}
        self._stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="rocketq-healer", daemon=True)
        #: Where the scrub goes on; None between two scrubs.
        self._at: int | None = None
        #: For any thread.
        self.health = Health()

    # --- any thread -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the store is still open."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._ranges.close()
        if self._thread.ident is not None:
            self._thread.join()

    def suspect(self, at: int, why: str, done: Done | None = None) -> None:
        """Have the frame that begins at a log offset looked at soon; `done` is called on its thread."""
        with self._condition:
            suspicion = self._suspects.setdefault(at, _Suspicion(why))
            if done is not None:
                suspicion.waiting.append(done)
            self._condition.notify()

    # --- the healer's thread ----------------------------------------------------------------

    def _run(self) -> None:
        now_ms = self._clock.monotonic_ms()
        again_ms, scrub_ms = now_ms + AGAIN_MS, now_ms + min(self._scrub_ms, FIRST_SCRUB_MS_MAX)
        while True:
            due_ms = min(again_ms, scrub_ms) if self._scrub_ms else again_ms
            suspects = self._wait(due_ms)
            if suspects is None:
                return
            now_ms = self._clock.monotonic_ms()
            if now_ms >= again_ms:
                again_ms = now_ms + AGAIN_MS
                known = {**self._operations.unreadable(), **self.health.damaged}
                suspects = {at: _Suspicion(why) for at, why in known.items()} | suspects
            for at, suspicion in suspects.items():
                self._look_at(at, suspicion.why)
                for done in suspicion.waiting:
                    done(at not in self.health.damaged)
            if self._scrub_ms and now_ms >= scrub_ms:
                is_over = self._scrub()
                took_ms = max(1, self._clock.monotonic_ms() - now_ms)
                scrub_ms = now_ms + (self._scrub_ms if is_over else (1 + REST) * took_ms)

    def _wait(self, due_ms: int) -> dict[int, _Suspicion] | None:
        """Return the suspicions that have come, at the latest when something is due; None at the end."""
        with self._condition:
            left_ms = min(due_ms - self._clock.monotonic_ms(), AGAIN_MS)
            if not (self._suspects or self._stopping) and left_ms > 0:
                self._condition.wait(left_ms / 1000)
            if self._suspects and not self._stopping:
                # Readers that ask again and again for a damaged frame bring it up each time.
                self._condition.wait_for(lambda: self._stopping, LOOK_MS / 1000)
            suspects, self._suspects = self._suspects, {}
            return None if self._stopping else suspects

    def _scrub(self) -> bool:
        """Read the next step of the log; return whether that was the last one."""
        operations = self._operations
        at = operations.begin if self._at is None else max(self._at, operations.begin)
        try:
            end = operations.sound_until(at, STEP_BYTES)
        except SegmentGone:
            end = operations.begin
        except CorruptFrame as damage:
            behind = self._look_at(damage.offset, str(damage.facts["why"]))
            # Without damage there the log was cut meanwhile: the next scrub begins anew.
            end = at if behind is None else behind
        self.health = replace(self.health, scrubbed_bytes=self.health.scrubbed_bytes + max(0, end - at))
        self._at = end if end > at else None
        return self._at is None

    def _look_at(self, at: int, why: str) -> int | None:
        """Heal what is damaged at a log offset; return where that ends, or None if it is sound."""
        try:
            damage = self._operations.damage_at(at, why)
        except SegmentGone:
            damage = None
        health = self.health
        left = {begin: found for begin, found in health.damaged.items() if begin != at}
        if damage is None:
            self.health = replace(health, damaged=left)
            return None
        if at not in health.damaged:
            log.error("log_damaged", begin=damage.begin, end=damage.end, why=why)
        replica = self._replica()
        known = replica.known
        addresses = others(known.record, replica.id.number) if known is not None else []
        if self._ranges.heal(replica.standing.group, addresses, damage, self._operations.heal):
            size = damage.end - damage.begin
            self.health = replace(
                health, damaged=left, healed=health.healed + 1, healed_bytes=health.healed_bytes + size
            )
        else:
            self.health = replace(health, damaged={**left, at: why})
        return damage.end
