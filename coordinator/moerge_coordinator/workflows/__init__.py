"""Long work as durable workflows: cut at any step, they go on there after a restart.

Every step can be repeated: files are named by content, rows are added once.
"""
