"""Benchmarks: every figure is a ratio of two sides that are measured in turns, in one go, on the same inputs."""
