"""A member of group `billing` that owns a queue of `orders`, and sends messages of it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketq.protocol.documents.groups import QueueOfTopic
from rocketq.protocol.documents.send_backs import FailedMessage, SendBackAnswer, SendBackRequest
from rocketq.protocol.frame_slices import FrameSlice
from tests.broker.groups.scripted_member import GroupMember
from tests.support.http_client import Http

RETRY, DEAD = "%RETRY%billing", "%DLQ%billing"


class FailingMember(GroupMember):
    """It names queue 0 of a topic, under the epoch of its claim."""

    def __init__(self, address: str, number: int, group: str = "billing") -> None:
        super().__init__(address, number, group)
        self.epoch: dict[str, int] = {}

    def own(self, topic: str = "orders") -> None:
        """Join, and claim queue 0 of a topic."""
        self.join()
        answer = self.api.claim_queues(self.group, self.client_id, [QueueOfTopic(topic, 0)])
        self.epoch[topic] = answer.granted[0].epoch

    def failed(self, offset: int, topic: str = "orders", **said: Any) -> FailedMessage:
        return FailedMessage(topic, 0, self.epoch[topic], offset, **{"delay_ms": 0, **said})

    def send_back(self, *messages: FailedMessage, retries_max: int | None = None) -> SendBackAnswer:
        request = SendBackRequest(self.client_id, messages, retries_max)
        return self.api.send_back(self.group, request)

    def outcomes(self, *messages: FailedMessage, retries_max: int | None = None) -> list[str]:
        return [str(each) for each in self.send_back(*messages, retries_max=retries_max).outcomes]

    def read(self, topic: str, offset: int = 0, count: int = 1) -> list[dict[str, Any]]:
        """Wait for so many messages of queue 0; return each as a dictionary of its columns."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            pulled = self.api.pull(
                topic, 0, offset, wait_ms=20_000, group=self.group,
                client_id=self.client_id if topic in self.epoch else None, epoch=self.epoch.get(topic),
            )  # fmt: skip
            found += [row for piece in pulled.slices() for row in rows(piece)]
            offset = pulled.next_offset
        return found


def rows(piece: FrameSlice) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = piece.batch.to_pylist()
    return [{**row, "properties": dict(row["properties"] or {})} for row in made]


@pytest.fixture
def member(broker: Http) -> Iterator[FailingMember]:
    """It owns queue 0 of `orders`, which has three messages."""
    sent = [{"body": f"{n}", "key": f"k-{n}", "tag": "paid", "queue": 0, "properties": {"own": f"{n}"}}
            for n in range(3)]  # fmt: skip
    assert broker.send_json("orders", *sent).status == 200
    made = FailingMember(broker.address, 1)
    made.own()
    yield made
    made.close()
