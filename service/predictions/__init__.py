"""Predictions, from the champion's weights or those of any other version."""
