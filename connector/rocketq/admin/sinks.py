"""Exactly-once sinks over the whole cluster: what the brokers together know of them, and forgetting them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rocketq.admin.live_masters import LiveMasters, without_master
from rocketq.errors import BrokerUnreachable, InvalidConfiguration
from rocketq.errors.sink_errors import CoordinatorConflict, SinkNotFound
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.sinks import SinkDescription, SinkListing


@dataclass(frozen=True, slots=True)
class SinkSummary:
    """A sink as all live brokers together know it.

    `query`, `run`, `decided` (the last batch decided) and `pending` (how many batches are decided and not yet
    published everywhere) are the coordinator's, and None if it is not alive. `staged` messages of
    `staged_bytes` are stored and not published.
    """

    sink: str
    coordinator: str
    query: str | None
    run: str | None
    decided: int | None
    pending: int | None
    staged: int
    staged_bytes: int


class SinkAdmin:
    """Asks every live master about sinks, and changes what they keep of one. Thread-safe.

    Every method raises BrokerUnreachable if a live master does not answer, and NameServersUnreachable.
    """

    def __init__(self, masters: LiveMasters) -> None:
        self._masters = masters

    def summaries(self) -> list[SinkSummary]:
        """Return every sink that a broker knows, by name."""
        return summaries_of(master.sinks() for master in self._masters.apis())

    def describe(self, sink: str, brokers: Collection[str] = ()) -> list[SinkDescription]:
        """Return the sink as each broker knows it, by broker; as each of `brokers` if some are named.

        Raises SinkNotFound if no broker knows it, InvalidConfiguration if a named one does not, and
        BrokerUnreachable if a group without a master may know what is asked.
        """
        return [description for _, description in self._known(sink, brokers)]

    def coordinator(self, sink: str) -> BrokerApi:
        """Return the broker that decides the sink's batches.

        Raises SinkNotFound, CoordinatorConflict, and BrokerUnreachable if it is not alive.
        """
        known = self._known(sink)
        claims = {master.broker: description.coordinator for master, description in known}
        if len(set(claims.values())) > 1:
            raise CoordinatorConflict(sink, claims)
        for master, description in known:
            if description.coordinator == master.broker:
                return master
        coordinator = known[0][1].coordinator
        raise BrokerUnreachable(
            coordinator, "no known address", "it coordinates the sink and is not alive", sent=False
        )

    def delete(self, sink: str, brokers: Collection[str] = (), *, force: bool = False) -> None:
        """Have every broker that knows the sink forget it; only `brokers` if some are named.

        `force` gives up what is decided and not yet published everywhere. Raises as `describe`, SinkBusy, and
        BrokerUnreachable if no brokers are named and a group has no master, which may know the sink. Then no
        broker has forgotten anything. After another error the call may be repeated.
        """
        if not brokers:
            self._masters.of_every_group()
        # The coordinator first: if it refuses, because a decision is pending, nothing has happened.
        known = self._known(sink, brokers)
        for master, _ in sorted(known, key=lambda each: each[0].broker != each[1].coordinator):
            master.delete_sink(sink, force=force)

    def _known(self, sink: str, brokers: Collection[str] = ()) -> list[tuple[BrokerApi, SinkDescription]]:
        """Return every broker that knows the sink, with what it knows; only `brokers` if some are named."""
        found: list[tuple[BrokerApi, SinkDescription]] = []
        unknown = SinkNotFound(sink, "of this cluster")
        masters, leaderless = self._masters.by_group()
        for master in masters:
            try:
                found.append((master, master.sink(sink)))
            except SinkNotFound as error:
                unknown = error
        awaited = [group for group in leaderless if not found or group in brokers]
        if awaited:
            raise without_master(awaited[0])
        if not found:
            raise unknown
        names = [master.broker for master, _ in found]
        others = sorted(set(brokers) - set(names))
        if others:
            raise InvalidConfiguration(
                "broker", ", ".join(others), "it is not alive, or does not know the sink",
                hint=f"{', '.join(names)} know it.",
            )  # fmt: skip
        return [each for each in found if not brokers or each[0].broker in brokers]


def summaries_of(listings: Iterable[SinkListing]) -> list[SinkSummary]:
    """Return the sinks that some brokers list, by name."""
    found: dict[str, list[SinkDescription]] = {}
    for listing in listings:
        for description in listing.sinks:
            found.setdefault(description.sink, []).append(description)
    return [_summary(found[name]) for name in sorted(found)]


def _summary(known: Sequence[SinkDescription]) -> SinkSummary:
    """Return one sink, of what each broker knows of it."""
    decides = next((each for each in known if each.broker == each.coordinator), None)
    stages = [stage for each in known for stage in each.stages]
    return SinkSummary(
        sink=known[0].sink,
        coordinator=known[0].coordinator,
        query=None if decides is None else decides.query,
        run=None if decides is None else decides.run,
        decided=None if decides is None else decides.decided,
        pending=None if decides is None else len(decides.pending),
        staged=sum(stage.messages for stage in stages),
        staged_bytes=sum(stage.bytes for stage in stages),
    )
