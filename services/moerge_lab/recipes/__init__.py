"""Recipes: methods to build models from dense experts and their domains' texts."""
