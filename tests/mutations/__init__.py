"""Mutations of essential code, applied one at a time to a copy, and the tests that must then fail."""
