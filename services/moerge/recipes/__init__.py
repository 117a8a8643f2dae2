"""Recipes: ways to build, from dense experts and their domains' texts, what predicts tokens."""
