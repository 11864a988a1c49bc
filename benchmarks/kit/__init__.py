"""What benchmarks share: servers, senders, rows, and how a run is measured and reported."""
