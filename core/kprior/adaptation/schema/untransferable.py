"""What is said where a model cannot follow a change."""

from __future__ import annotations


class Untransferable(ValueError):
    """A model that cannot follow a change of its input or target: it has to be trained anew."""
