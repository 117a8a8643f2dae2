"""`moerge tune`: a version or a mixture trained on pooled text, outside the federation (laws 1 and 3)."""
