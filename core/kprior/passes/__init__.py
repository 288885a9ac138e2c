"""Accumulators: statistics that are summed over all rows, chunk by chunk and shard by shard."""
