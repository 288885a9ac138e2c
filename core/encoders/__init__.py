"""Frozen encoders: the part of a model that turns raw inputs into features and that Amend does not train."""
