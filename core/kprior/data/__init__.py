"""Rows as tensors: chunks, shards, encoded and drawn ones, and their form as bytes."""
