"""rocketq as a data source of Apache Spark: `format("rocketq")`, with nothing to register.

Spark looks for top-level packages named `pyspark_*` with a `DefaultSource`, in every Python
session; so this file imports next to nothing, and must never fail to import. A job that imports it before
it makes its session needs no PYSPARK_PYTHON: `rocketq` sets it where Spark would start another Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Imported for what its import does.
import rocketq as rocketq
from rocketq.system.extras import need

try:
    from pyspark_rocketq.source import RocketqDataSource as DefaultSource
except ModuleNotFoundError:
    # Asked only now: an import in a session of Spark, which has all of it, is to cost nothing more.
    need("pyspark_rocketq", "spark")
    raise

if TYPE_CHECKING:
    from pyspark_rocketq.session.local_session import local_session

__all__ = ["DefaultSource", "local_session"]


def __getattr__(name: str) -> Any:
    """Load `local_session` when it is first used: sessions that Spark makes do not need it."""
    if name != "local_session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_rocketq.session.local_session import local_session

    return local_session
