"""Keeping a set of processes running: what ``amend up`` is made of. Which processes, ``amend.up.stack`` decides."""
