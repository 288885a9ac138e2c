"""Erasures: a person's request to be forgotten, followed to its receipt."""
