"""Benchmarks of the engine and the service. Tests do not run them; see `amend bench --help`."""
