"""Merging on one machine: the complete pipeline on local folders, without a server."""
