"""The worker: takes jobs, has `core` do the mathematics, and records what came of them."""
