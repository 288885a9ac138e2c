"""Webhooks, following the Standard Webhooks specification: registration, events and signed deliveries."""
