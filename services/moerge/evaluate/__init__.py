"""How good a model is on each domain, and which experts its routers chose."""
