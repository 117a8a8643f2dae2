"""Perplexity, and a version's routing of tokens."""
