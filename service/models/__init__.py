"""Models: create, describe, change, hold, import weights, delete."""
