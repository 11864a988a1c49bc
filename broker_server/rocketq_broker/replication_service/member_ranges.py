"""Heals a damaged part of the log with the bytes of another member of the group.

Any member may be asked, whoever is master: what lies below its confirmed end is the same everywhere. The
bytes prove themselves (`store.replica.healing`), so a member that is damaged at the same place harms nobody,
and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from rocketq.errors import RocketqError
from rocketq.net.transport import Transport, TransportFailure
from rocketq.protocol.documents.replication import FETCH_HEADER, RANGE_PATH, FetchHead
from rocketq.protocol.sizes import FRAME_BYTES_MAX
from rocketq_broker.replication.group_record import GroupRecord
from rocketq_broker.store.replica.healing import DamagedRange
from rocketq_broker.store.replica.raw_frames import RawFrames

#: A larger part is not healed: most of a file is gone, and the whole log is better copied anew.
RANGE_BYTES_MAX: Final = 32 * 1024 * 1024
RANGE_TIMEOUT_MS: Final = 10_000
_HEADS: Final = msgspec.json.Decoder(FetchHead)

Heal = Callable[[DamagedRange, RawFrames], None]

log = structlog.get_logger("rocketq.broker.replica")


def others(record: GroupRecord, number: int) -> list[str]:
    """Return the addresses of a replica's fellow members, the master's first."""
    members = [each for each in record.members if each.replica.number != number]
    return [
        each.address for each in sorted(members, key=lambda each: each.replica.number != record.master.number)
    ]


class MemberRanges:
    """Calls to other members; one thread at a time."""

    def __init__(self) -> None:
        self._transport = Transport()

    def close(self) -> None:
        self._transport.close()

    def heal(self, group: str, addresses: Sequence[str], damage: DamagedRange, heal: Heal) -> bool:
        """Ask one member after the other for a damaged part until `heal` takes its bytes.

        Returns whether it took some. Why it did not is logged.
        """
        facts = {"begin": damage.begin, "end": damage.end, "damage": damage.why}
        whys = {} if addresses else {"": "the group has no other member"}
        if damage.end - damage.begin > RANGE_BYTES_MAX:
            addresses, whys = (), {"": f"more than {RANGE_BYTES_MAX} bytes are damaged in a row"}
        for address in addresses:
            try:
                heal(damage, self._fetched(group, address, damage))
            except (RocketqError, TransportFailure, msgspec.DecodeError, OSError) as error:
                whys[address] = str(error)
            else:
                log.warning("log_healed", source=address, **facts)
                return True
        log.error("heal_fails", why="; ".join(f"{each}: {why}" for each, why in whys.items()), **facts)
        return False

    def _fetched(self, group: str, address: str, damage: DamagedRange) -> RawFrames:
        """Return a member's frames from the begin of a damaged part on."""
        answer = self._transport.call(
            "GET", address, RANGE_PATH,
            query={"group": group, "begin": damage.begin, "max_bytes": damage.fetch_bytes},
            timeout_ms=RANGE_TIMEOUT_MS, answer_bytes_max=damage.fetch_bytes + FRAME_BYTES_MAX,
        )  # fmt: skip
        head = _HEADS.decode(answer.headers.get(FETCH_HEADER, ""))
        return RawFrames(head.at, (memoryview(answer.body),), head.segments)
