"""Versions: list, promote, compare, download."""
