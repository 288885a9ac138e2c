"""``amend prove``: two services with the same history, except for the content of erased examples, are compared."""
