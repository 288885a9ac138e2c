"""Versions: immutable model states, each standing for the ledger up to one position."""
