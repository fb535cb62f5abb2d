"""Benchmarks: one script a claim."""
