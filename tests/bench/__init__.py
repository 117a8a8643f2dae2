"""Benchmarks: every figure is a ratio of two sides, measured alternately in one run on the same inputs."""
