"""The error for changes that require a retrain."""


class Untransferable(ValueError):
    """The model cannot be adapted to a change of its input, target or loss; it must be retrained."""
