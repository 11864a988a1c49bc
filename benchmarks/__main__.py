"""`python -m benchmarks [NAME ...]`: run all benchmarks, or the named ones; results go to `results/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ALL: Final = (
    "append", "pull", "backlog", "filters", "spark_read", "spark_stream_read", "spark_footprint",
    "spark_write", "spark_sink", "spark_small_batches", "spark_first_use",
    "sync_send", "accumulated_sends", "small_sends", "group_commit", "tag_filter", "key_index", "restart",
    "many_queues", "cold_reads", "group_consume", "idle_members", "delayed", "retried", "transactions",
    "leases", "idempotent", "trace", "asyncio_clients",
    "replica_apply", "replication_cost", "failover", "replicated_append", "register_cas",
)  # fmt: skip
RESULTS: Final = Path(__file__).with_name("results")


def main() -> int:
    """Run each in a process of its own; return 1 if one failed."""
    names = sys.argv[1:] or list(ALL)
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    failed = [
        name
        for name in names
        if subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json", str(RESULTS / f"{name}.json")],
            cwd=RESULTS.parents[1],
            check=False,
        ).returncode
    ]
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
