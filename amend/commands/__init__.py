"""The commands of ``amend``: one module per noun, assembled in ``amend.cli``."""
