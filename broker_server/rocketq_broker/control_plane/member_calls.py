"""The calls that every member of a group makes again and again: heartbeats, watches, and its goodbye.

They come without FastAPI, as the calls of the data plane do: an idle member makes no others, and a broker may
have thousands of them. `groups.membership` knows who is a member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketq.protocol.documents.broker import WAIT_MS_MAX, encode
from rocketq.protocol.documents.groups import Heartbeat
from rocketq_broker.control_plane.topic_endpoints import address_of, json_document
from rocketq_broker.data_plane.data_call import Answer, DataRequest, json_answer
from rocketq_broker.data_plane.query_parameters import parse, whole_number
from rocketq_broker.groups.membership import Membership

_NONE: Final[frozenset[str]] = frozenset()
_OF_WATCH: Final = frozenset({"client_id", "known", "wait_ms"})


class MemberCalls:
    """Handles the calls under `/v1/groups/{group}/members`, on the loop's thread."""

    def __init__(self, members: Callable[[], Membership]) -> None:
        """`members` gives those of the present office: each has its own."""
        self._members = members

    async def heartbeat(self, request: DataRequest) -> Answer | None:
        """Join a group, or stay in it."""
        parse(request.query_string, _NONE)
        beat = await json_document(request.scope, request.receive, Heartbeat)
        address = address_of(request.scope)
        return json_answer(encode(await self._members().heartbeat(request.name, request.part, beat, address)))

    async def leave(self, request: DataRequest) -> Answer | None:
        """Leave a group: the member's queues are released."""
        parse(request.query_string, _NONE)
        await self._members().leave(request.name, request.part)
        return json_answer(b"{}")

    async def watch(self, request: DataRequest) -> Answer | None:
        """The members of a group; held while their version is `known`. With `client_id` a member's watch."""
        given = parse(request.query_string, _OF_WATCH)
        wait_ms = whole_number(given, "wait_ms", 0, WAIT_MS_MAX, 0)
        found = await self._members().watch(
            request.name, given.get("client_id"), given.get("known"), wait_ms, request.receive
        )
        return json_answer(encode(found))
