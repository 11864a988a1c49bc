"""rocketq as a data source of Apache Spark: `format("rocketq")`, with nothing to register.

Spark looks for top-level packages named `pyspark_*` with a `DefaultSource`, in every Python
session; so this file imports next to nothing, and must never fail to import. A job that imports it before
it makes its session needs no PYSPARK_PYTHON: `rocketq` sets it where Spark would start another Python.
"""

from __future__ import annotations

# Imported for what its import does.
import rocketq as rocketq
from pyspark_rocketq.source import RocketqDataSource as DefaultSource

__all__ = ["DefaultSource"]
