"""A SparkSession on this machine: Java, Python and settings that work (`local_session`)."""
