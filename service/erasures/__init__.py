"""Erasures: from the request of a person to the receipt."""
