"""What is added up over all rows, chunk by chunk and shard by shard."""
