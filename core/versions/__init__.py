"""Versions: immutable model states, each of which reflects the ledger up to one position."""
