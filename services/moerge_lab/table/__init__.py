"""`moerge table`: the papers' table."""
