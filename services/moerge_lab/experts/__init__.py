"""Texts of several domains from packages, and the training of small experts on them."""
