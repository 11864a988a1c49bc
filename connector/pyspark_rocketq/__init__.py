"""rocketq as a data source of Apache Spark: `format("rocketq")`, with nothing to register.

Spark looks for top-level packages named `pyspark_*` with a `DefaultSource`, in every Python
session; so this file imports next to nothing, and must never fail to import.
"""

from __future__ import annotations

from pyspark_rocketq.source import RocketqDataSource as DefaultSource

__all__ = ["DefaultSource"]
