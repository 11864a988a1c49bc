"""Asking every broker of every topic, and waiting for those that are away.

For moments that must not miss a broker: what a batch reads, where an AvailableNow run ends, where a
query begins. A broker that is away is waited for, since it may only restart; what to do without
it is for the caller to decide.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from pyspark_rocketq.connections import Connection, TopicOnBroker
from pyspark_rocketq.errors import BrokersAway, DataLost, by_topic, listed_brokers
from pyspark_rocketq.options.options import Assigned, Subscribed, SubscribedPattern, Subscription
from pyspark_rocketq.survey.subscription import (
    DENIED,
    Place,
    Survey,
    Topology,
    find_topology,
    in_parallel,
    survey_of,
)
from rocketq.errors import InvalidConfiguration, RocketqError, RouteNotFound, TopicNotFound
from rocketq.protocol.documents.broker import TopicOffsets

log = logging.getLogger("pyspark_rocketq")

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class FullSurvey:
    """What all brokers of a subscription said, and which of them did not, after how long a wait."""

    topology: Topology
    survey: Survey
    #: Brokers that hold a topic and did not answer, and why.
    away: Mapping[TopicOnBroker, str] = field(hash=False)
    waited_ms: int

    def require_all(self) -> Self:
        """Return this if every broker answered, else raise BrokersAway."""
        if self.away:
            raise BrokersAway(by_topic(self.away), self.waited_ms)
        return self

    def require_any(self) -> Self:
        """Return this if a broker answered, or none was to be asked; else raise BrokersAway."""
        return self if self.survey.incarnations else self.require_all()


def survey_all(
    connection: Connection,
    subscription: Subscription,
    wait_ms: int,
    *,
    named: Collection[TopicOnBroker] = (),
    any_is_enough: bool = False,
) -> FullSurvey:
    """Ask every broker of the subscription, again while one is away, until `wait_ms` are over.

    `named` is what a checkpoint names (`find_topology`). With `any_is_enough` the first answer ends the wait.
    An error that waiting cannot mend is raised at once.
    """
    begun = time.monotonic()
    pause_s = _PAUSE_FIRST_S
    while True:
        topology = find_topology(connection, subscription, named)
        answers, denied, failed = _ask(topology)
        survey = survey_of(topology.places, answers, {**topology.gone, **denied})
        away = {**topology.away, **failed}
        left_s = begun + wait_ms / 1000 - time.monotonic()
        if not away or left_s <= 0 or (any_is_enough and answers):
            return FullSurvey(topology, survey, away, int((time.monotonic() - begun) * 1000))
        if pause_s == _PAUSE_FIRST_S:
            log.warning("Waiting for brokers that are away, at most %d ms: %s", wait_ms, listed_brokers(away))
        for topic, _ in away:
            connection.routes.invalidate(topic)
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _ask(
    topology: Topology,
) -> tuple[dict[TopicOnBroker, TopicOffsets], dict[TopicOnBroker, str], dict[TopicOnBroker, str]]:
    """Ask every place once; return the answers, who denies the topic, and who did not answer, and why."""

    def asker(place: Place) -> Callable[[], TopicOffsets | RocketqError]:
        def ask() -> TopicOffsets | RocketqError:
            try:
                return place.offsets()
            except RocketqError as error:
                if error.retryable or isinstance(error, TopicNotFound):
                    return error
                raise

        return ask

    answers: dict[TopicOnBroker, TopicOffsets] = {}
    denied: dict[TopicOnBroker, str] = {}
    failed: dict[TopicOnBroker, str] = {}
    for key, answer in in_parallel({key: asker(place) for key, place in topology.places.items()}).items():
        if isinstance(answer, TopicOffsets):
            answers[key] = answer
        elif isinstance(answer, TopicNotFound):
            denied[key] = DENIED
        else:
            failed[key] = answer.message
    return answers, denied, failed


def require_found(connection: Connection, subscription: Subscription, full: FullSurvey) -> None:
    """Raise for what the subscription names and the cluster does not have; a pattern may match nothing."""
    if isinstance(subscription, SubscribedPattern):
        return
    known = {topic for topic, _ in (*full.survey.incarnations, *full.away)}
    named = subscription.topics if isinstance(subscription, Subscribed) else subscription.queues
    for topic in named:
        if topic in known:
            continue
        if any(gone == topic for gone, _ in full.survey.gone):
            # A route that is kept from before, and all its brokers deny the topic.
            connection.routes.forget(topic)
            raise RouteNotFound(topic)
        # Raises RouteNotFound with the nearest topic, unless the topic has a route but no queue to read.
        connection.routes.route(topic)
        raise InvalidConfiguration(
            "assign" if isinstance(subscription, Assigned) else "subscribe",
            topic,
            "none of its brokers can be read from",
            hint="Look at the topic's perm and at the broker names: rocketq topic describe.",
        )


def losses_by_record(survey: Survey) -> list[DataLost]:
    """Return a loss for each broker that should hold a topic by the topic's record and no longer does.

    Only for topics that another broker has: without one there is no record.
    """
    held = {topic for topic, _ in survey.incarnations}
    return [
        DataLost(
            f"{topic}/{broker}",
            why,
            hint=f"Create the topic there again (rocketq topic create {topic} --if-absent), take the broker "
            f"off it (rocketq topic alter {topic} --remove-broker {broker}), or set failOnDataLoss=false.",
        )
        for (topic, broker), why in sorted(survey.gone.items())
        if topic in held
    ]


def raise_or_log(losses: Collection[DataLost], fail_on_data_loss: bool) -> None:
    """Raise the first loss, or log all of them, as `failOnDataLoss` says."""
    for loss in losses:
        if fail_on_data_loss:
            raise loss
        log.warning("Going on after a loss (failOnDataLoss=false): %s", loss.message)


def warn_of_unrecorded(topics: Collection[str]) -> None:
    """Say that a broker of these topics could be away without anybody knowing."""
    for topic in sorted(topics):
        log.warning(
            "The record of topic %s does not say which brokers hold it, so one that is away is not missed. "
            "Run once while all of them are up: rocketq topic create %s --if-absent.",
            topic,
            topic,
        )
