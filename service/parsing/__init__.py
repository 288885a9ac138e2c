"""From what callers send to numbers: inputs, targets, columns."""
