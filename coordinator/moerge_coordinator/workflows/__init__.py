"""Durable workflows: after a restart, they resume at the interrupted step.

Every step can be repeated: files are named by content, rows are added once.
"""
