"""Trials: measurements on which defaults, bounds and warnings rest."""
