"""Shared parts of tests."""
