"""Examples: added in five formats, read back one by one or in pages."""
