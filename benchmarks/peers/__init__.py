"""The peers: the same work on Apache Kafka and on rocketq, in turns, on one machine.

`python3 dev.py bench-peers` runs everything. It needs Java 17, Maven and the network, so it is no part of the
tests. Each peer comes by its ordinary package coordinates and runs with its own defaults, apart from what
its file states. The first turn of a side is reported apart (cold): a JVM compiles for some seconds. The
number of a side is the median of its later turns (warm).
"""
