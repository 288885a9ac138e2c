"""The register: an append-only, signed log of everything that happens to erasure requests and receipts."""
