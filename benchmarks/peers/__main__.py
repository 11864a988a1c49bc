"""`python -m benchmarks.peers [NAME ...]`: run all comparisons or the named ones, in a Python for them."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from benchmarks.peers import packages

ALL: Final = ("python_clients", "spark_jobs")


def main() -> int:
    """Run each in a process of its own; return 1 if one failed."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or list(ALL)
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"There is no comparison {unknown[0]!r}; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    python = str(packages.python())
    results = packages.ROOT / "benchmarks" / "results"
    failed = False
    for name in names:
        command = [python, "-m", f"benchmarks.peers.{name}", "--json", str(results / f"peers_{name}.json")]
        failed |= bool(subprocess.run(command, cwd=packages.ROOT, check=False).returncode)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
