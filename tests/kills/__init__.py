"""Killed workers, and the contributions that they send nevertheless."""
