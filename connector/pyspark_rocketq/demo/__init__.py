"""`rocketq demo`: sends a year of flights through two brokers and Spark, and proves that none was lost.

flights.py    the 336,776 flights that left New York in 2013, as messages
streaming.py  Spark reads them from topic `flights` and writes delays to topic `delays`
proof.py      compares what Spark reads back with what was sent
display.py    progress on stderr, results on stdout
__main__.py   runs all steps, on a cluster in a temporary directory
"""
