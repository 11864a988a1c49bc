"""Asking every live master the same question at once, for a view that shows what is known.

    survey = Survey(admin.masters)
    answers = survey.ask(lambda master: master.groups())
    answers.found          by broker
    answers.unreachable    by broker: why it did not answer

The other classes of this package raise an error when one broker does not answer, because a change or a sum
without it would be wrong. A survey is for an operator who looks at a cluster in trouble. The brokers are
asked side by side. One that does not answer delays the others by one timeout at most, and is named beside
what the others said. While no NameServer answers, the brokers that were known last are asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors import BrokerUnreachable, NameServersUnreachable, RocketqError
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.nameserver_documents import BrokerIdentity

#: Calls at the same time; each waits for one broker.
WORKERS: Final = 16

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

    def __init__(self, masters: LiveMasters) -> None:
        self._masters = masters
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="rocketq-survey")
        self._lock = threading.Lock()
        self._seen: dict[str, BrokerIdentity] = {}
        self._live: dict[str, BrokerIdentity] = {}

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

    def ask(self, question: Callable[[BrokerApi], T]) -> Answers[T]:
        """Put a question to every live master at once. Raises NameServersUnreachable as `live`."""
        identities, why = self.live()
        asked = {
            name: self._pool.submit(question, self._masters.api(identity))
            for name, identity in identities.items()
        }
        answers: Answers[T] = Answers(nameservers=why)
        for name, future in asked.items():
            try:
                answers.found[name] = future.result()
            except BrokerUnreachable as error:
                answers.unreachable[name] = str(error.facts.get("why") or error.message)
            except RocketqError as error:
                answers.refused[name] = error
        return answers

    def close(self) -> None:
        """Stop the threads, after the calls that are under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)
