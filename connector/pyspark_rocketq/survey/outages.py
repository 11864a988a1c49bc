"""Which brokers are away from a running query, and since when.

An outage is said twice, when it begins and when it ends, however often the query looks. It ends the query
only when no broker answers any more, or when a run with an end needs the one that is away.
The methods are given the time: seconds of a clock that does not run backwards.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark_rocketq.connections import TopicOnBroker
from pyspark_rocketq.errors import BrokersAway, by_topic
from pyspark_rocketq.survey.subscription import Survey

log = logging.getLogger("pyspark_rocketq")


class Outages:
    """The outages of one query; one that stops it is borne for `wait_ms`."""

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms
        self._since: dict[TopicOnBroker, float] = {}
        #: Why each broker is away.
        self.away: Mapping[TopicOnBroker, str] = {}

    def see(self, away: Mapping[TopicOnBroker, str], survey: Survey, now: float) -> None:
        """Take note of who is away and who answers; raise BrokersAway when nobody has for `wait_ms`."""
        self.away = dict(away)
        for topic, broker in sorted(away.keys() - self._since.keys()):
            self._since[topic, broker] = now
            log.warning(
                "Broker %s is away, and its queues of topic %s stand still until it is back; the query goes "
                "on with the other brokers. %s",
                broker,
                topic,
                away[topic, broker],
            )
        for topic, broker in sorted(self._since.keys() - away.keys()):
            seconds = now - self._since.pop((topic, broker))
            if (topic, broker) in survey.incarnations:
                log.warning(
                    "Broker %s is back after %.1f s, and its queues of topic %s go on.",
                    broker,
                    seconds,
                    topic,
                )
        if away and not survey.incarnations and not survey.gone:
            # Nobody answers since the last one went away.
            self._bear(max(self._since.values()), away, now)

    def endure(self, needed: Collection[TopicOnBroker], now: float) -> None:
        """Raise BrokersAway when one of the needed brokers has been away for `wait_ms`."""
        away = {key: why for key, why in self.away.items() if key in needed}
        if away:
            self._bear(min(self._since[key] for key in away), away, now)

    def _bear(self, since: float, away: Mapping[TopicOnBroker, str], now: float) -> None:
        waited_ms = int((now - since) * 1000)
        if waited_ms >= self._wait_ms:
            raise BrokersAway(by_topic(away), waited_ms)
