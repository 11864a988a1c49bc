"""For the tests of programs that use rocketq: a real cluster in the test's own process, and its clock.

`EmbeddedCluster` needs the extra `server`; `spark_session` the extra `spark`. `fixtures` is a pytest
plugin.
"""

from __future__ import annotations

from rocketq.testing.embedded_cluster import EmbeddedCluster
from rocketq.testing.movable_clock import MovableClock
from rocketq.testing.spark import spark_session

__all__ = ["EmbeddedCluster", "MovableClock", "spark_session"]
