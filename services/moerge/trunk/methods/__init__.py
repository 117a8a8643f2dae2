"""Trunk methods, one module each. Importing them doesn't import torch."""
