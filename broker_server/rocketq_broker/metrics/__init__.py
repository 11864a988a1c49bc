"""What the broker tells Prometheus."""
