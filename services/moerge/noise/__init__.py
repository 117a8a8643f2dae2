"""Noise in router contributions, for differential privacy of each document: whitened, bounded sums; noise; its cost."""
