"""Passes over the examples, as jobs make them: watched, and shared with other workers."""
