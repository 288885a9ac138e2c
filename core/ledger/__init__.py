"""The ledger: for each model, the append-only sequence of its changes, each with a position of its own.

The functions exported here write it; `passes` and `queries` read it.
"""

from core.ledger.additions import Added, add
from core.ledger.corrections import Replaced, replace_examples
from core.ledger.removals import Removed, remove, restore
from core.ledger.spec_history import change_spec

__all__ = ["Added", "Removed", "Replaced", "add", "change_spec", "remove", "replace_examples", "restore"]
