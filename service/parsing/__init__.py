"""Parses request bodies into numbers: inputs, targets, weights, columns."""
