"""Trunks: every non-MLP parameter, merged over an ordered list of experts."""
