"""The files that pages load: style, scripts, and the vendored libraries with their versions and checksums.

They lie in the package, so a page loads nothing from elsewhere. Each library's licence lies beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

DIRECTORY: Final = Path(__file__).parent / "assets"


class Vendored(NamedTuple):
    """A file of a library, byte for byte as its npm package has it."""

    package: str
    version: str
    file: str
    licence: str
    sha256: str


VENDORED: Final[dict[str, Vendored]] = {
    "vendor/htmx-4.0.1.min.js": Vendored(
        "htmx.org", "4.0.1", "dist/htmx.min.js", "0BSD",
        "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    ),
    "vendor/htmx-LICENSE.txt": Vendored(
        "htmx.org", "4.0.1", "LICENSE", "0BSD",
        "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    ),
    "vendor/uplot-1.6.32.iife.min.js": Vendored(
        "uplot", "1.6.32", "dist/uPlot.iife.min.js", "MIT",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    "vendor/uplot-1.6.32.min.css": Vendored(
        "uplot", "1.6.32", "dist/uPlot.min.css", "MIT",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    "vendor/uplot-LICENSE.txt": Vendored(
        "uplot", "1.6.32", "LICENSE", "MIT",
        "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    ),
}  # fmt: skip

#: Everything that is served, with its media type.
SERVED: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "vendor/htmx-4.0.1.min.js": "text/javascript; charset=utf-8",
    "vendor/uplot-1.6.32.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uplot-1.6.32.min.css": "text/css; charset=utf-8",
}


def read_all() -> dict[str, bytes]:
    """Return the content of every file that is served."""
    return {name: (DIRECTORY / name).read_bytes() for name in SERVED}
