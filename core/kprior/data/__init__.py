"""Rows as tensors: examples, chunks, random draws, conversion between schemas, and encoding to bytes."""
