"""Analyses of a model: they adapt, evaluate and discard, at one position of the ledger, and change nothing.

The engine's part is in `core.kprior.analyses`. Here, its results become metrics with standard errors, and rows get
their ids. The service computes what needs no pass over the examples; the worker's job `analyse` does the rest.
"""
