"""An HTTP client for tests: one call at a time, sent exactly as the test says."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from rocketq.model import Message
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.message_schema import from_messages

ARROW = {"content-type": calls.ARROW_STREAM}
JSON = {"content-type": calls.JSON}


@dataclass(frozen=True)
class Answer:
    """What came back, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error document."""
        return str(self.json["code"])

    def header(self, name: str) -> str:
        return self.headers[name]


class Http:
    """Calls over one connection at a time, sent without any normalisation."""

    def __init__(self, address: str) -> None:
        self.address = address
        parts = urlsplit(address)
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            data = response.read()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, data)
        finally:
            connection.close()

    def get(self, path: str, accept: str | None = None) -> Answer:
        return self.call("GET", path, headers={} if accept is None else {"accept": accept})

    def put(self, path: str, document: Any) -> Answer:
        return self.call("PUT", path, json.dumps(document), JSON)

    def create(self, topic: str, **fields: Any) -> Answer:
        answer = self.put(f"/v1/topics/{topic}", fields)
        assert answer.status == 201, answer.body
        return answer

    def send(self, topic: str, body: bytes, query: str = "", headers: Mapping[str, str] = ARROW) -> Answer:
        return self.call("POST", f"/v1/topics/{topic}/messages{query}", body, headers)

    def send_json(self, topic: str, *messages: Mapping[str, Any], query: str = "") -> Answer:
        return self.send(topic, json.dumps({"messages": messages}).encode(), query, JSON)

    def pull(self, topic: str, queue: int, offset: int, accept: str | None = None, **query: Any) -> Answer:
        extra = "".join(f"&{name}={value}" for name, value in query.items())
        return self.get(f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}{extra}", accept)

    def total(self, topic: str) -> int:
        """How many messages the topic has in all."""
        answer = self.get(f"/v1/topics/{topic}/offsets")
        assert answer.status == 200, answer.body
        return int(answer.json["total"])


def stream(*batches: list[Message] | pa.RecordBatch, codec: str | None = None) -> bytes:
    """An Arrow stream of these batches."""
    made = [each if isinstance(each, pa.RecordBatch) else from_messages(each) for each in batches]
    data: bytes = write_stream(made, codec).to_pybytes()
    return data


def numbered(count: int, first: int = 0) -> list[Message]:
    return [Message(b"message %d" % number) for number in range(first, first + count)]
