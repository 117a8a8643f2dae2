"""The owner's documents: splits, shards, and the key of shard names."""
