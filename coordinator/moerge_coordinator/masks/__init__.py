"""Masked contributions: their acceptance, cohorts of them with their keepers' answers, and the commands."""
