"""Benchmarks: a seed, experts and versions on the same public tasks, by lm_eval in a process of its own."""
