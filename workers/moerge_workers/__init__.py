"""The owner's side: documents become shards, shards become sums, sums leave as a contribution."""
