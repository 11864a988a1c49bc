"""`python -m benchmarks.peers [NAME ...] [options of these]`: run all comparisons or the named ones.

They run in a Python that is made for them. Options are for comparisons that are named: `--help` after a name
prints what it has.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from benchmarks.peers import packages

ALL: Final = ("python_clients", "spark_jobs", "steady_streams", "growth")


def main() -> int:
    """Run each in a process of its own; return 1 if one failed."""
    given = sys.argv[1:]
    options_at = next((at for at, word in enumerate(given) if word.startswith("-")), len(given))
    names, options = given[:options_at] or list(ALL), given[options_at:]
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"There is no comparison {unknown[0]!r}; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    python = str(packages.python())
    results = packages.ROOT / "benchmarks" / "results"
    failed = False
    for name in names:
        command = [python, "-m", f"benchmarks.peers.{name}", "--json", str(results / f"peers_{name}.json")]
        command += options
        failed |= bool(subprocess.run(command, cwd=packages.ROOT, check=False).returncode)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
