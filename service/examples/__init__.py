"""Examples: add in five formats, list, correct, export."""
