"""A store that hypothesis ends and begins again: what every model of it has in common."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, rule

from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import Driver
from tests.support.workload import end_life


class Lives(RuleBasedStateMachine):
    """A store on a crashing disk; a model sets `disk` and `settings` and calls `_start` to begin."""

    disk: Disk
    settings: StoreConfig
    driver: Driver

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def _start(self) -> None:
        store = MessageStore.open(self.settings, files=CrashingFiles(self.disk))
        self.driver = Driver(store)

    def _bodies(self, sizes: list[int]) -> list[bytes]:
        """Return bodies of about these sizes, each told from all others by its number."""
        made = []
        for size in sizes:
            self.numbers += 1
            made.append(b"%d." % self.numbers + bytes(size))
        return made

    @rule()
    def take_snapshot(self) -> None:
        self.driver.store.take_snapshot()

    @rule()
    def restart(self) -> None:
        self.driver.store.close()
        self._start()

    @rule()
    def kill(self) -> None:
        """As kill -9: what was written is in the page cache, nothing else happens any more."""
        self.disk.end_session()
        end_life(self.driver.store)
        self._start()

    @rule()
    def lose_what_is_derived(self) -> None:
        self.driver.store.close()
        files = CrashingFiles(self.disk)
        for directory in ("consumequeue", "state", "index", "timers"):
            for path in self.disk.paths(directory):
                files.remove(path)
        self._start()
