"""Perplexity, and where a version routes its tokens."""
