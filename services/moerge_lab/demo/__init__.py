"""`moerge demo`: experts of four domains, their training, a federation and its scores on one machine."""
