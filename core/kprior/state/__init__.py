"""The state of a version, the pass over the data that measures it, and the posterior of its weights."""

from core.kprior.state.state import State, StateError, align, count_after, move_anchor, read_envelope

__all__ = ["State", "StateError", "align", "count_after", "move_anchor", "read_envelope"]
