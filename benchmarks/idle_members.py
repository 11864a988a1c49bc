"""A thousand idle members of consumer groups on one broker: what their heartbeats and watches cost.

Each member sends heartbeats and holds watches as a consumer with the default settings does, each over a
connection of its own, while nothing happens. Members are measured in groups of ten, and all in one group,
after all of them have joined.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.append import create_topic
from benchmarks.kit import servers
from benchmarks.kit.instrument import introduce, options, report, say
from rocketq.protocol.documents.groups import HEARTBEAT_MS, WATCH_MS

MEMBERS: Final = 1_000
HEARTBEAT_S: Final = HEARTBEAT_MS / 1000
TARGET_CORE: Final = 0.05
#: Members that join at the same time.
JOINING: Final = 20


@dataclass
class Connection:
    """One kept connection, on which one call at a time is made."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, broker: servers.Server) -> Connection:
        return cls(*await asyncio.open_connection(broker.host, broker.port, limit=1 << 24))

    async def call(self, method: str, path: str, document: Any = None) -> Any:
        body = b"" if document is None else json.dumps(document).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.writer.write(head.encode() + b"\r\n" + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        answer = await self.reader.readexactly(length)
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{lines[0]}: {answer[:300]!r}")
        return json.loads(answer)


class IdleMember:
    """One member: a heartbeat and a watch at a time, until it is cancelled."""

    def __init__(self, number: int, group: str) -> None:
        self.client_id = f"member-{number}"
        self.group = group
        self.number = number
        self.calls = 0

    async def join(self, broker: servers.Server) -> None:
        self._beats, self._watches = await Connection.to(broker), await Connection.to(broker)
        self.version = (await self._beat())["members_version"]

    async def _beat(self) -> Any:
        beat = {
            "started_at_us": self.number,
            "subscriptions": [{"topic": "T"}],
            "language": "python",
            "version": "0",
        }
        self.calls += 1
        return await self._beats.call("PUT", f"/v1/groups/{self.group}/members/{self.client_id}", beat)

    async def stay(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stay_alive())
            tasks.create_task(self._watch())

    async def _stay_alive(self) -> None:
        # Members that joined together go on at different times.
        await asyncio.sleep(HEARTBEAT_S * self.number / MEMBERS)
        while True:
            await self._beat()
            await asyncio.sleep(HEARTBEAT_S)

    async def _watch(self) -> None:
        path = f"/v1/groups/{self.group}/members?client_id={self.client_id}&wait_ms="
        wait_ms = WATCH_MS * self.number // MEMBERS
        while True:
            self.calls += 1
            found = await self._watches.call("GET", f"{path}{wait_ms}&known={self.version}")
            self.version, wait_ms = found["version"], WATCH_MS


async def _measure(broker: servers.Server, group_size: int, seconds: float) -> dict[str, Any]:
    members = [IdleMember(number, f"g{number // group_size}") for number in range(MEMBERS)]
    started, used = time.perf_counter(), broker.cpu_seconds()
    for at in range(0, MEMBERS, JOINING):
        await asyncio.gather(*(each.join(broker) for each in members[at : at + JOINING]))
    joining = {"seconds": time.perf_counter() - started, "cpu_seconds": broker.cpu_seconds() - used}
    staying = [asyncio.create_task(each.stay()) for each in members]
    # The first watches are answered with what has changed since their members joined.
    await asyncio.sleep(WATCH_MS / 1000)
    calls, used, began = sum(each.calls for each in members), broker.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - began
    core = (broker.cpu_seconds() - used) / elapsed
    rate = (sum(each.calls for each in members) - calls) / elapsed
    for task in staying:
        task.cancel()
    failed = [each for each in await asyncio.gather(*staying, return_exceptions=True) if each]
    wrong = [each for each in failed if not isinstance(each, asyncio.CancelledError)]
    if wrong:
        raise RuntimeError(f"{len(wrong)} members failed: {wrong[0]!r}")
    return {"group_size": group_size, "core": core, "calls_per_s": rate, "joining": joining}


def measure(group_size: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as name, servers.broker(Path(name)) as broker:
        create_topic(broker, "/v1/topics/T", 4)
        found = asyncio.run(_measure(broker, group_size, seconds))
    met = "met" if found["core"] < TARGET_CORE else "MISSED"
    say(f"{MEMBERS:,} members in groups of {group_size}: joined in {found['joining']['seconds']:.1f} s")
    say(
        f"idle: {100 * found['core']:.1f} % of a core, {found['calls_per_s']:.0f} calls/s"
        f"   target < {100 * TARGET_CORE:.0f} %   {met}"
    )
    return {**found, "target_core": TARGET_CORE}


def main() -> None:
    chosen = options("idle_members", "What a thousand idle members cost one broker.", seconds=60)
    introduce("idle_members")
    sizes = (10, MEMBERS)
    report("idle_members", chosen, {str(size): measure(size, chosen.seconds) for size in sizes})


if __name__ == "__main__":
    main()
