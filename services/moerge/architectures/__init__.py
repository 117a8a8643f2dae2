"""Which dense family becomes which stock MoE class, as data."""
