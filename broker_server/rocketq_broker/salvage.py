"""`python -m rocketq_broker.salvage`: make a damaged data directory usable again, saying what it costs.

Without `--yes` it only looks: it prints what is damaged and changes nothing. With it,
the damaged stretches are replaced by lost frames (`store.recovery.salvage`), their bytes are
kept under `salvage/` in the directory, and the report names every queue offset that is
gone. The broker must be stopped; the directory's lock makes sure of it.

The log of a replica is like that of the other members, byte for byte, and a salvaged one is not: nobody may
follow it, and it must not be elected. So a replica's directory is refused, for its broker heals it from
another member when it starts. With `--leave-group` it is salvaged and is of no group any more.

Exit codes: 0 nothing is damaged or everything was salvaged, 1 it failed, 10 damage was found and
left alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rocketq.errors import RocketqError
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk import replica_standing as standing
from rocketq_broker.store.disk.files import OSFiles
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import ReplicaNotSalvaged
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.recovery.salvage import SalvageReport, salvage, survey

_DAMAGE_LEFT = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at a data directory, or salvage it; return the exit code."""
    parser = argparse.ArgumentParser(
        "rocketq_broker.salvage", description="Salvage a damaged data directory."
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="the stopped broker's directory")
    parser.add_argument("--yes", action="store_true", help="change the directory; without it, only look")
    parser.add_argument(
        "--leave-group",
        action="store_true",
        help="salvage a replica's directory, which then leaves its group",
    )
    options = parser.parse_args(arguments)
    if not options.data_dir.is_dir():
        parser.error(f"{options.data_dir} is not a directory")
    settings = StoreConfig(options.data_dir)
    files = OSFiles(settings.directory)
    try:
        files.lock()
        try:
            if options.yes:
                _leave_group(files, options.leave_group)
            report = _salvage(files, settings) if options.yes else _look(files, settings)
        finally:
            files.unlock()
    except (RocketqError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(report), indent=2))
    return _DAMAGE_LEFT if report.gaps and report.recovery is None else 0


def _look(files: OSFiles, settings: StoreConfig) -> SalvageReport:
    handles = Handles(files, settings.open_files_max)
    gaps = survey(CommitLog(files, handles))
    if gaps:
        print("Damage was found and left alone; --yes salvages it.", file=sys.stderr)
    return SalvageReport(tuple(gaps), (), None)


def _leave_group(files: OSFiles, is_wanted: bool) -> None:
    """Make a replica's directory one of no group, before its log changes; raise ReplicaNotSalvaged."""
    kept = standing.read(files)
    if not kept.group:
        return
    if not is_wanted:
        raise ReplicaNotSalvaged(kept.group)
    files.remove(standing.PATH)
    files.sync_directory(standing.DIRECTORY)


def _salvage(files: OSFiles, settings: StoreConfig) -> SalvageReport:
    return salvage(files, settings.queue_file_units, settings.open_files_max)


if __name__ == "__main__":
    sys.exit(main())
