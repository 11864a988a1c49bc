"""A broker on a disk whose sync takes longer: python -m benchmarks.slow_disk MILLISECONDS BROKER-ARGUMENTS.

A virtual disk may answer a sync from its host's memory, in a tenth of a millisecond; a disk that
keeps its promise through a power cut takes some milliseconds. Here every sync of a file takes that
much longer, and nothing else is changed.
"""

from __future__ import annotations

import sys
import time

from rocketq_broker import __main__ as broker
from rocketq_broker.store.disk.files import OSFile


def slow_down(milliseconds: float) -> None:
    """Have every sync of this process take so much longer."""
    sync = OSFile.sync

    def slow_sync(file: OSFile) -> None:
        sync(file)
        time.sleep(milliseconds / 1000)

    OSFile.sync = slow_sync  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(float(sys.argv.pop(1)))
    sys.exit(broker.main())
