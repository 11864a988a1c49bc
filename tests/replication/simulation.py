"""A broker group under faults, from a seed: the product's `Replica`, a register, a network, disks, senders,
readers.

A step lets one broker do one thing, or one thing go wrong: calls and answers are lost, doubled, late and
out of order; links are cut one way; processes pause, are killed between two effects, and return; machines
lose their power and with it what was not synced; disks are emptied. Never is the last intact replica that
counts destroyed, as no system survives that. In the end all is healed, and the group must work again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocketq.errors.replication_errors import (
    ElectionRefused,
    EpochAhead,
    NotMaster,
    ReplicaUnknown,
    StaleEpoch,
)
from rocketq.model import FlushMode
from rocketq_broker.replication.errors import ReplicationHalt
from rocketq_broker.replication.fetching import Fetch, FetchAnswer, Shipment
from rocketq_broker.replication.group_record import Known, ReplicaId
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.replica import (
    Ask,
    Effect,
    Follow,
    KeepStanding,
    LeaveOffice,
    Standing,
    TakeOffice,
)
from rocketq_broker.replication.slave_role import Append, BeginAt, Confirmed, CutTo
from tests.replication.invariants import Invariants, Violation
from tests.replication.simulated_broker import SimBroker, SimRegister
from tests.replication.simulated_log import SimFrame, SimLog

REGISTER = 0
FRAMES_MAX = 60
HEAL_STEPS = 900


class Killed(Exception):
    """The process ends between two effects."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is made of."""

    flush: FlushMode = FlushMode.SYNC
    steps: int = 1_500


class Simulation:
    """One run; `run` raises Violation."""

    def __init__(self, seed: int, setting: Setting) -> None:
        rng = self.rng = random.Random(seed)
        self.setting = setting
        self.invariants = Invariants()
        self.register = SimRegister(self.invariants)
        self.min_in_sync = 2
        count = rng.choice([3, 3, 3, 4, 5])
        if count == 5 and rng.random() < 0.5:
            self.min_in_sync = 3
        self.brokers = {n: SimBroker(n, setting.flush) for n in range(1, count + 1)}
        self.now = 0.0
        self.calls: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.values = itertools.count(1)
        self.cut_links: Counter[tuple[int, int]] = Counter()
        self.asked: list[Ask] = []
        self.is_healed = False
        self.loss = rng.choice([0, 0.05, 0.2])
        self.doubling = rng.choice([0, 0.05])
        self.delay_max = rng.choice([3, 15, 60])
        self.counts: Counter[str] = Counter()

    # Time and network.

    def at(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.calls, (self.now + delay, next(self.order), call))

    def _pass_time(self) -> None:
        self.now += 1
        while self.calls and self.calls[0][0] <= self.now:
            heapq.heappop(self.calls)[2]()

    def _delay(self) -> float:
        return self.rng.uniform(0.1, 1 if self.is_healed else self.delay_max)

    def _is_lost(self, source: int, target: int, chance: float) -> bool:
        return self.cut_links.get((source, target), 0) > 0 or (
            not self.is_healed and self.rng.random() < chance
        )

    def send(self, source: int, target: int, take: Callable[[SimBroker], None]) -> None:
        """Have `take` happen at another broker: perhaps, perhaps twice, some time."""
        if self._is_lost(source, target, self.loss):
            return

        def arrive() -> None:
            broker = self.brokers[target]
            if not broker.is_up:
                return
            if broker.is_paused:
                self.at(5, arrive)
            else:
                self.guarded(broker, take)

        copies = 2 if not self.is_healed and self.rng.random() < self.doubling else 1
        for _ in range(copies):
            self.at(self._delay(), arrive)

    def ask_register(self, broker: SimBroker, call: Callable[[], Known | None]) -> None:
        """Call the register: the call or the answer may be lost, and either may be late."""
        number, life = broker.number, broker.life
        chance = max(self.loss, 0.03)
        if self._is_lost(number, REGISTER, chance):
            return

        def reach() -> None:
            known = call()
            self.hold(broker)
            if not self._is_lost(REGISTER, number, chance):
                self.at(self._delay(), lambda: back(known))

        def back(known: Known | None) -> None:
            if not broker.is_up or broker.life != life or known is None:
                return
            if broker.is_paused:
                self.at(5, lambda: back(known))
            else:
                self.guarded(broker, lambda b: self.learn(b, known))

        self.at(self._delay(), reach)

    def guarded(self, broker: SimBroker, act: Callable[[SimBroker], None]) -> None:
        try:
            act(broker)
        except Killed:
            self.stop(broker)
        self.hold(broker)

    def hold(self, changed: SimBroker) -> None:
        self.invariants.hold(self.register.record, self.brokers, changed)

    # What a broker does.

    def perform(self, broker: SimBroker, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if not self.is_healed and self.rng.random() < 0.01:
                raise Killed
            match effect:
                case KeepStanding(standing):
                    broker.standing = standing
                case Ask():
                    self.ask(broker, effect)
                case TakeOffice(epoch, start):
                    assert start == broker.log.end
                    self.invariants.took_office(epoch, broker.replica.id)
                    self.counts["offices"] += 1
                case LeaveOffice():
                    broker.waiting = []
                case Follow():
                    self.followed(broker)

    def followed(self, broker: SimBroker) -> None:
        """Nothing is to be done before the first fetch."""

    def ask(self, broker: SimBroker, ask: Ask) -> None:
        self.invariants.speaks(broker)
        self.asked.append(ask)
        self.ask_register(broker, lambda: self.register.cas(ask.version, ask.record))

    def learn(self, broker: SimBroker, known: Known) -> None:
        broker.replica, effects = broker.replica.learned(known, broker.log.view, int(self.now))
        self.perform(broker, effects)
        self.confirmed(broker)

    def confirmed(self, broker: SimBroker) -> None:
        """Answer the senders whose frames are confirmed now, and checkpoint now and then."""
        end = broker.replica.confirmed.end
        while broker.waiting and broker.waiting[0].end <= end:
            frame = broker.waiting.pop(0)
            self.invariants.acknowledged(frame)
            self.counts["acknowledged"] += 1
        if self.rng.random() < 0.1:
            broker.checkpoint = broker.replica.confirmed

    def read_register(self, broker: SimBroker) -> None:
        if self.register.known is None and broker.number == 1 and broker.replica.asked is None:
            broker.replica, effects = broker.replica.founding("group", self.min_in_sync)
            self.perform(broker, effects)
        self.ask_register(broker, lambda: self.register.known)

    def append(self, broker: SimBroker) -> None:
        if not broker.replica.may_append or len(broker.log.frames) > FRAMES_MAX:
            return
        size = self.rng.randint(1, 3)
        frame = SimFrame(broker.log.end + size, size, broker.replica.standing.epoch, next(self.values))
        self.invariants.appended(broker.log, frame)
        broker.log.append(frame)
        broker.waiting.append(frame)
        if self.rng.random() < 0.3:
            self.sync(broker)

    def sync(self, broker: SimBroker) -> None:
        broker.log.sync()
        broker.replica = broker.replica.synced(broker.log.view)
        self.confirmed(broker)

    def fetch(self, broker: SimBroker) -> None:
        fetch = broker.replica.fetch(broker.log.view)
        if fetch is None or broker.replica.known is None:
            return
        self.invariants.speaks(broker)
        life = broker.life
        master = broker.replica.known.record.master.number
        self.send(broker.number, master, lambda m: self.take_fetch(m, fetch, life))

    def take_fetch(self, master: SimBroker, fetch: Fetch, life: int) -> None:
        try:
            master.replica, answer, effects = master.replica.fetched(fetch, master.log.view, int(self.now))
        except (StaleEpoch, NotMaster):
            return
        except (EpochAhead, ReplicaUnknown):
            self.read_register(master)
            return
        self.perform(master, effects)
        self.confirmed(master)
        self.invariants.speaks(master)
        is_shipment = isinstance(answer, Shipment)
        most = 6 if self.is_healed else 3
        frames = master.log.frames_from(fetch.place.end, self.rng.randint(0, most)) if is_shipment else []
        self.send(master.number, fetch.replica.number, lambda s: self.take_answer(s, answer, frames, life))

    def take_answer(self, slave: SimBroker, answer: FetchAnswer, frames: list[SimFrame], life: int) -> None:
        if slave.life != life:
            return
        slave.replica, step = slave.replica.answered(answer, slave.log.view)
        match step:
            case Append():
                for frame in frames:
                    self.invariants.appended(slave.log, frame)
                    slave.log.append(frame)
            case CutTo(end):
                self.cut(slave, end)
            case BeginAt(begin, before):
                self.invariants.cuts(slave, begin)
                slave.log.begin_at(begin, before)
                self.counts["begun again"] += 1
        if self.is_healed or self.rng.random() < 0.4:
            self.sync(slave)

    def cut(self, broker: SimBroker, end: int) -> None:
        self.invariants.cuts(broker, end)
        broker.log.cut(end)
        self.counts["cuts"] += 1

    def read(self, broker: SimBroker) -> None:
        end = broker.replica.readable_end
        self.invariants.saw(frame for frame in broker.log.frames if frame.end <= end)

    def stand(self, broker: SimBroker) -> None:
        try:
            broker.replica, effects = broker.replica.standing_for_election()
        except ElectionRefused:
            return
        self.perform(broker, effects)

    def hand_over(self, broker: SimBroker) -> None:
        try:
            successor = self.rng.choice(sorted(self.brokers))
            broker.replica, effects = broker.replica.handing_over(successor)
        except (ElectionRefused, NotMaster):
            return
        self.perform(broker, effects)

    def review(self, broker: SimBroker) -> None:
        limit = self.rng.choice([0, 10, 40]) if not self.is_healed else 30
        broker.replica, effects = broker.replica.reviewed(broker.log.view, int(self.now), limit)
        self.perform(broker, effects)
        self.confirmed(broker)

    def remove_old(self, broker: SimBroker) -> None:
        end = min(broker.checkpoint.end, broker.log.durable)
        ends = [frame.end for frame in broker.log.frames if frame.end <= end]
        if ends:
            broker.log.remove_below(self.rng.choice(ends))

    # What goes wrong.

    def stop(self, broker: SimBroker) -> None:
        """Kill the process; sometimes the machine, sometimes with its disk."""
        fate = self.rng.random()
        may_lose = self._survives_without(broker)
        broker.is_up = broker.is_clean = False
        self.counts["crashes"] += 1
        if fate < 0.05 and may_lose:
            self.wipe(broker)
        elif fate < 0.7 and (may_lose or self.setting.flush is FlushMode.SYNC):
            broker.is_same_boot = False
            self.counts["torn"] += broker.log.power_cut(self.rng)
        self.at(self.rng.uniform(5, 80) if not self.is_healed else 1, lambda: self.start(broker))

    def wipe(self, broker: SimBroker) -> None:
        self.counts["wiped"] += 1
        broker.log = SimLog(self.setting.flush)
        broker.standing, broker.checkpoint, broker.incarnation = Standing(), Confirmed(), ""

    def start(self, broker: SimBroker) -> None:
        if not broker.is_up:
            broker.start()
            self.guarded(broker, self.read_register)

    def _survives_without(self, broker: SimBroker) -> bool:
        """Whether another intact replica counts, now and after each proposal that may still take effect."""
        known = self.register.known
        if known is None:
            return False
        open_asks = [ask.record for ask in self.asked if ask.version == known.version]
        return all(
            any(
                each.number != broker.number and self._is_intact(each)
                for each in record.in_sync | record.eligible
            )
            for record in [known.record, *open_asks]
        )

    def _is_intact(self, replica: ReplicaId) -> bool:
        broker = self.brokers[replica.number]
        return broker.incarnation == replica.incarnation and broker.is_intact()

    def go_wrong(self, broker: SimBroker, chance: float) -> None:
        if chance > 0.992 and broker.is_up:
            self.stop(broker)
            self.hold(broker)
        elif chance > 0.985:
            broker.is_paused = True
            self.at(self.rng.uniform(5, 60), lambda: setattr(broker, "is_paused", False))
        elif chance > 0.97:
            link = (broker.number, self.rng.choice([REGISTER, *self.brokers]))
            link = link if self.rng.random() < 0.7 else (link[1], link[0])
            self.cut_links[link] += 1
            self.at(self.rng.uniform(5, 100), lambda: self.cut_links.subtract([link]))

    # The run.

    def act(self, broker: SimBroker, chance: float) -> None:
        """Let a broker do one thing."""
        for limit, action in _ACTIONS:
            if chance < limit:
                action(self, broker)
                return

    def run(self) -> None:
        for broker in self.brokers.values():
            self.start(broker)
        numbers = list(self.brokers)
        for _ in range(self.setting.steps):
            broker, chance = self.brokers[self.rng.choice(numbers)], self.rng.random()
            if broker.is_up and not broker.is_paused:
                self.guarded(broker, lambda b, c=chance: self.act(b, c))
            self.go_wrong(broker, chance)
            self._pass_time()
        self.heal()

    def heal(self) -> None:
        """Let everything work again; then the group must have a master, whole logs, and go on."""
        self.is_healed = True
        self.cut_links.clear()
        before = self.counts["acknowledged"]
        for step in range(HEAL_STEPS):
            for broker in self.brokers.values():
                broker.is_paused = False
                if not broker.is_up and step == 30:
                    self.start(broker)
            broker = self.brokers[self.rng.choice(list(self.brokers))]
            if broker.is_up:
                self.guarded(broker, lambda b, s=step: self.act_healed(b, s))
            self._pass_time()
        master = next((b for b in self.brokers.values() if self.is_present_master(b)), None)
        if master is None:
            raise Violation("there is no master after all was healed")
        if self.counts["acknowledged"] == before:
            raise Violation("nothing is acknowledged after all was healed")
        self.invariants.lost(master.log)
        for broker in self.brokers.values():
            begin = max(broker.log.lineage.begin, master.log.lineage.begin)
            if [f for f in broker.log.frames if f.start >= begin] != [
                f for f in master.log.frames if f.start >= begin
            ]:
                raise Violation("the logs differ after all was healed")

    def act_healed(self, broker: SimBroker, step: int) -> None:
        is_master = self.is_present_master(broker)
        chance = self.rng.random()
        if chance < 0.1:
            self.read_register(broker)
        elif chance < 0.2:
            self.perform(broker, broker.replica.asking_again())
        elif is_master:
            if 300 < step < 600:
                self.make_room(broker)
                self.append(broker)
            self.sync(broker)
            if step < 250:
                self.review(broker)
        elif chance < 0.9:
            self.fetch(broker)
        elif step > 60 and not any(self.is_present_master(each) for each in self.brokers.values()):
            self.stand(broker)

    def make_room(self, broker: SimBroker) -> None:
        """A full log of the run must not keep the last messages out."""
        if len(broker.log.frames) > FRAMES_MAX:
            broker.checkpoint = broker.replica.confirmed
            self.remove_old(broker)

    def is_present_master(self, broker: SimBroker) -> bool:
        role, record = broker.replica.role, self.register.record
        is_master = broker.is_up and isinstance(role, MasterRole) and record is not None
        return is_master and role.epoch == record.epoch  # type: ignore[union-attr]


def _ask_again(simulation: Simulation, broker: SimBroker) -> None:
    simulation.perform(broker, broker.replica.asking_again())


#: What a broker does, and up to which chance.
_ACTIONS: Sequence[tuple[float, Callable[[Simulation, SimBroker], None]]] = (
    (0.22, Simulation.append),
    (0.30, Simulation.sync),
    (0.58, Simulation.fetch),
    (0.67, Simulation.read_register),
    (0.70, _ask_again),
    (0.75, Simulation.read),
    (0.78, Simulation.review),
    (0.80, Simulation.stand),
    (0.805, Simulation.hand_over),
    (0.815, Simulation.remove_old),
)


def run(seed: int, setting: Setting | None = None) -> str:
    """Run a seed; return what went wrong, empty if nothing did."""
    simulation = Simulation(seed, setting or Setting())
    try:
        simulation.run()
    except (Violation, ReplicationHalt, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
