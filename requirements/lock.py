"""Write requirements/dev.txt: the exact versions that the extra `dev` and the build need.

Run it with the environment whose versions are to become the locked ones:

    .venv/bin/python requirements/lock.py

It follows the dependencies of the installed packages, so what happens to lie in the
environment besides is left out. The file names versions and nothing else, neither
hashes nor where packages come from, so it serves pip and uv, mirrors and wheel
folders alike.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: The build backend is locked too: the project is installed without build isolation.
ROOTS = ("rocketq[dev]", "hatchling")
TARGET = Path(__file__).with_name("dev.txt")
HEADER = "# The exact versions for development; written by requirements/lock.py.\n"


def closure(roots: tuple[str, ...]) -> dict[str, str]:
    """Return name to version of everything the roots need in this environment."""
    locked: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        for extra in ("", *wanted.extras):
            key = (canonicalize_name(wanted.name), extra)
            if key in seen:
                continue
            seen.add(key)
            try:
                found = distribution(wanted.name)
            except PackageNotFoundError as error:
                raise SystemExit(f"{wanted.name} is needed but not installed here") from error
            locked[key[0]] = found.version
            for line in found.requires or ():
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    locked.pop("rocketq", None)
    return dict(sorted(locked.items()))


if __name__ == "__main__":
    versions = closure(ROOTS)
    TARGET.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in versions.items()))
    print(f"{TARGET}: {len(versions)} packages")
