"""Formulas of memory, disk, network and time, from the shapes of models."""
