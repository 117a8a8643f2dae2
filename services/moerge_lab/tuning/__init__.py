"""`moerge tune`: a version trained further on pooled text, outside the federation (laws 1 and 3)."""
