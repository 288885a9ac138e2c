"""Erasure: a person's request to be forgotten, across all models, with a due date and a receipt."""
