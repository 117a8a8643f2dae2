"""Body methods, one formula and its declarations per module. Importing them doesn't import torch."""
