"""Dense families, one module per group of similar ones, and the stock MoE classes that host them."""
