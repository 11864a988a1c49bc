"""The options of the source and the sink: one table, parsed once into frozen values."""
