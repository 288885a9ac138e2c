"""Benchmarks: what the engine reaches, as figures. Never run by the tests; `amend bench --help`."""
