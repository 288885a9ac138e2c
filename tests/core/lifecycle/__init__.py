"""Tests of `core/lifecycle`."""
