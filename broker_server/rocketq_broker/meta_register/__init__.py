"""The register of a broker group: one value that is replaced by compare-and-set."""
