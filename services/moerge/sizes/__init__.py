"""Formulas of memory, disk and network, from the shapes of models."""
