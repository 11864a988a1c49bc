"""A register that etcd keeps, over its JSON gateway (etcd 3.4 and later: `/v3/kv/txn`).

The register is one key. etcd counts how often a key was written since it was made, and this is the version of
the register. A compare-and-set is a transaction that compares this count. A read is a transaction that also
writes, to a second key: then it has gone through etcd's log, and what it sees is the present value. A
linearizable read of etcd does not promise as much in every version.

A member that does not answer may have carried the call out. The call is then made again at the next one, and
recognises its own value by the author, as in `proposer`.
"""

from __future__ import annotations

import uuid
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rocketq.errors import RegisterUnavailable, RemoteError
from rocketq.net.transport import Transport, TransportFailure
from rocketq.protocol.documents.broker import JSON
from rocketq.protocol.documents.meta_register import NO_VALUE, RegisterValue
from rocketq_broker.meta_register.meta_register import Registered
from rocketq_broker.meta_register.proposer import Call, Change

TRANSACTION: Final = "/v3/kv/txn"
_HEADERS: Final = {"content-type": JSON}


class _KeyValue(msgspec.Struct, frozen=True):
    value: str
    version: str


class _Range(msgspec.Struct, frozen=True):
    kvs: list[_KeyValue] = []


class _Operation(msgspec.Struct, frozen=True):
    response_range: _Range | None = None


class _Answer(msgspec.Struct, frozen=True):
    """What etcd answers to a transaction; it leaves out what is false, zero or empty."""

    succeeded: bool = False
    responses: list[_Operation] = []


class _Stored(msgspec.Struct, frozen=True):
    author: str
    record: str


_ANSWERS: Final = msgspec.json.Decoder(_Answer)
_STORED: Final = msgspec.json.Decoder(_Stored)


class EtcdRegister:
    """A `MetaRegister` for one broker group; `members` are addresses of one etcd cluster."""

    def __init__(
        self,
        transport: Transport,
        members: Sequence[str],
        cluster: str,
        broker: str,
        *,
        timeout_ms: int = 3_000,
    ) -> None:
        self._name = f"{cluster}/{broker}"
        self._key = _text(f"rocketq/registers/{self._name}")
        self._read_key = _text(f"rocketq/reads/{self._name}")
        self._transport = transport
        self._members = tuple(members)
        self._timeout_ms = timeout_ms
        self._author = uuid.uuid4().hex
        self._calls = 0

    def read(self) -> Registered:
        reads = {"success": [{"request_put": {"key": self._read_key}}, *self._ranges()]}
        return self._carry_out(Call(self._name, Change("")), reads)

    def cas(self, version: int, record: str) -> Registered:
        self._calls += 1
        change = Change(f"{self._author}.{self._calls}", version, record)
        stored = msgspec.json.encode(_Stored(change.author, record)).decode()
        sets = {
            "compare": [{"key": self._key, "target": "VERSION", "result": "EQUAL", "version": str(version)}],
            "success": [{"request_put": {"key": self._key, "value": _text(stored)}}, *self._ranges()],
            "failure": [{"request_put": {"key": self._read_key}}, *self._ranges()],
        }
        return self._carry_out(Call(self._name, change), sets)

    def _ranges(self) -> list[dict[str, Any]]:
        return [{"request_range": {"key": self._key}}]

    def _carry_out(self, call: Call, transaction: dict[str, Any]) -> Registered:
        """Ask one member after the other; raise what `MetaRegister` names."""
        body, failures = msgspec.json.encode(transaction), []
        for member in self._members:
            try:
                answer = self._transport.call(
                    "POST", member, TRANSACTION, body=body, headers=_HEADERS, timeout_ms=self._timeout_ms
                )
                chosen = _chosen(_ANSWERS.decode(answer.body))
            except (TransportFailure, RemoteError, msgspec.DecodeError, ValueError) as error:
                failures.append(f"{member}: {error}")
                call = Call(call.register, call.change, is_in_doubt=True)
                continue
            return call.outcome(chosen)
        raise RegisterUnavailable(self._name, "; ".join(failures))


def _chosen(answer: _Answer) -> RegisterValue:
    found = next((each.response_range for each in answer.responses if each.response_range is not None), None)
    if found is None:
        raise ValueError("the answer has no value of the register")
    if not found.kvs:
        return NO_VALUE
    stored = _STORED.decode(b64decode(found.kvs[0].value))
    return RegisterValue(int(found.kvs[0].version), stored.author, stored.record)


def _text(text: str) -> str:
    """Return bytes as etcd's JSON has them."""
    return b64encode(text.encode()).decode("ascii")
