"""The audit log: who did what, when and from where. Append-only; `entries` writes it, `queries` reads it."""
