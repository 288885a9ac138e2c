"""What the ``amend`` command can do: one module per noun, put together in ``amend.cli``."""
