"""Routers from sums, in closed form."""
