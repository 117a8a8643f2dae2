"""Soup-of-Experts (Ablin et al. 2025): a bank of parameters, and dense specialists made from it."""
