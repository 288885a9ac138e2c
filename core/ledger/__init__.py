"""The ledger: per model, the append-only sequence of what happened, each change with a position of its own."""
