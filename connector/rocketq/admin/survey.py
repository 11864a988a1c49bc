"""Asking every live master the same question at once, for a view that shows what is known.

    survey = Survey(admin.masters)
    answers = survey.ask(lambda master: master.groups())
    answers.found          by broker
    answers.unreachable    by broker: why it did not answer

The other classes of this package raise an error when one broker does not answer, because a change or a sum
without it would be wrong. A survey is for an operator who looks at a cluster in trouble. The brokers are
asked side by side. One that does not answer delays the others by one timeout at most, and is named beside
what the others said. While no NameServer answers, the brokers that were known last are asked.

A broker process that did not answer is not asked again for SILENT_MS: the next question is answered at once,
with the same reason. So a page that asks several questions waits for a frozen broker once. `probe=True` asks
it all the same; the observer of the console does so every few seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rocketq.admin.live_masters import LiveMasters
from rocketq.clock import Clock, SystemClock
from rocketq.errors import BrokerUnreachable, NameServersUnreachable, RocketqError
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.nameserver import BrokerIdentity

#: Calls at the same time; each waits for one broker.
WORKERS: Final = 16
#: How long a broker is taken for silent after a call that it did not answer.
SILENT_MS: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What the brokers said to one question, each by the name of its broker group.

    `unreachable` says why a broker gave no answer, `refused` has the error that one sent. `nameservers` is
    why no NameServer answered; empty if one did.
    """

    found: dict[str, T] = field(default_factory=dict, hash=False)
    unreachable: dict[str, str] = field(default_factory=dict, hash=False)
    refused: dict[str, RocketqError] = field(default_factory=dict, hash=False)
    nameservers: str = ""

    @property
    def complete(self) -> bool:
        """Whether every live broker answered, and it is known which ones are alive."""
        return not (self.unreachable or self.nameservers)


class Survey:
    """Asks the live masters of one cluster. Thread-safe; making one calls nobody. Close it."""

    def __init__(self, masters: LiveMasters, clock: Clock | None = None) -> None:
        self._masters = masters
        self._clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="rocketq-survey")
        self._lock = threading.Lock()
        self._seen: dict[str, BrokerIdentity] = {}
        self._live: dict[str, BrokerIdentity] = {}
        #: Until when, on the monotonic clock, a process is taken for silent, and why it did not answer.
        self._silent: dict[BrokerIdentity, tuple[int, str]] = {}

    def live(self) -> tuple[dict[str, BrokerIdentity], str]:
        """Return the live masters, or while no NameServer answers those known last, and why none answers.

        Raises NameServersUnreachable if no NameServer ever answered.
        """
        try:
            found = self._masters.identities()
        except NameServersUnreachable as error:
            with self._lock:
                if not self._live:
                    raise
                return self._live, error.message
        with self._lock:
            self._live = found
            self._seen |= found
        return found, ""

    def gone(self) -> dict[str, BrokerIdentity]:
        """Return the brokers that were alive since this survey was made and are not any more."""
        with self._lock:
            return {name: one for name, one in self._seen.items() if name not in self._live}

    def ask(self, question: Callable[[BrokerApi], T], *, probe: bool = False) -> Answers[T]:
        """Put a question to every live master at once. Raises NameServersUnreachable as `live`.

        One that did not answer a moment ago is asked only with `probe`.
        """
        identities, why = self.live()
        answers: Answers[T] = Answers(nameservers=why)
        asked = {}
        for name, identity in identities.items():
            reason = "" if probe else self._silence(identity)
            if reason:
                answers.unreachable[name] = reason
            else:
                asked[name] = self._pool.submit(question, self._masters.api(identity))
        for name, future in asked.items():
            try:
                answers.found[name] = future.result()
            except BrokerUnreachable as error:
                answers.unreachable[name] = str(error.facts.get("why") or error.message)
            except RocketqError as error:
                answers.refused[name] = error
            self._remember(identities[name], answers.unreachable.get(name, ""))
        return answers

    def _silence(self, identity: BrokerIdentity) -> str:
        """Return why a process did not answer a moment ago; empty if it did, or was not asked."""
        with self._lock:
            until, why = self._silent.get(identity, (0, ""))
        return why if self._clock.monotonic_ms() < until else ""

    def _remember(self, identity: BrokerIdentity, why: str) -> None:
        with self._lock:
            if why:
                self._silent[identity] = (self._clock.monotonic_ms() + SILENT_MS, why)
            else:
                self._silent.pop(identity, None)

    def close(self) -> None:
        """Stop the threads, after the calls that are under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)
