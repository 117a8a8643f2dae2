"""Durable work."""
