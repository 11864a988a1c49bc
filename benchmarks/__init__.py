"""Measurements of rocketq against ceilings measured in the same run; `docs/benchmarks.md` has results."""
