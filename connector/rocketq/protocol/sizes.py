"""The sizes that both ends of a call must agree on."""

from __future__ import annotations

from typing import Final

#: No frame may be larger: it bounds what a reader must hold at once.
FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
#: What one batch may inflate to.
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
#: How many messages one batch may hold.
BATCH_MESSAGES_MAX: Final = 262_144
