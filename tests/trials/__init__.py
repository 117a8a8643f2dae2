"""Experiments beyond DUME."""
