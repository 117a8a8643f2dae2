"""Merging on one machine: the whole pipeline on local folders, without a service."""
