"""Webhooks, after the Standard Webhooks convention: who is told, of what, and how it gets there."""
