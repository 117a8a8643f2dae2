"""Evaluations: reported scores of versions, their routes, and what they mean for a promotion and for model cards."""
