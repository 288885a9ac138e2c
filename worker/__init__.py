"""The worker: takes jobs, computes new versions with `core`, and records the results."""
