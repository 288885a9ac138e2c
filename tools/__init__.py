"""Programs for contributors; no part of the product."""
