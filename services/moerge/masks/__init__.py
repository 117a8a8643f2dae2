"""Masks of router contributions: masked files, a keeper's law and answers, and the sum of a cohort."""
