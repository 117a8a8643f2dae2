"""Perplexity, a version's routing of tokens, and the use of its experts."""
