"""Owners' work on their experts."""
