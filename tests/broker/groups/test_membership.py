"""A session whose queues cannot be released is ended again, so that no queue stays with who is gone."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketq.clock import SystemClock
from rocketq.errors import SystemBusy
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.groups import ClaimRequest, Heartbeat, QueueOfTopic, Subscription
from rocketq_broker.config import BrokerConfig
from rocketq_broker.groups.membership import Membership
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.store import MessageStore


def test_a_release_that_the_log_refuses_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(name="broker-0", data_dir=tmp_path)
    store = MessageStore.open(config.store_config())
    groups, refused = store.consumer_groups, asyncio.Event()
    end_session = groups.end_session

    def busy_at_first(group: str, client_id: str, done: Any) -> None:
        if refused.is_set():
            end_session(group, client_id, done)
        else:
            refused.set()
            done(SystemBusy("256 MiB wait to be written", 200))

    monkeypatch.setattr(groups, "end_session", busy_at_first)

    async def live() -> None:
        completions = Completions(asyncio.get_running_loop())
        members = Membership(config, SystemClock(), groups, completions)
        await completions.outcome(partial(store.create_topic, "orders", CreateTopicRequest(1, 1)))
        for number, client_id in enumerate(("a", "b")):
            beat = Heartbeat(number, (Subscription("orders"),))
            version = (await members.heartbeat("billing", client_id, beat, "")).members_version
        await members.claim("billing", ClaimRequest("a", (QueueOfTopic("orders", 0),)))
        with pytest.raises(SystemBusy):
            await members.leave("billing", "a")
        assert [claim.client_id for claim in groups.claims("billing").values()] == ["a"]
        while groups.claims("billing"):
            version = (await members.watch("billing", "b", version, 20_000, asyncio.Event().wait)).version
        assert members.client_ids("billing") == ("b",)
        members.stop()

    try:
        asyncio.run(live())
    finally:
        store.close()
