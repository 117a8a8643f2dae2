"""The owner's side: documents become shards, shards become sums, sums are sent as a contribution."""
