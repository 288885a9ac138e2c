"""From examples to a first state."""
