"""Predictions with the champion or any other version."""
