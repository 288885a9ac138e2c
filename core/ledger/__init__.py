"""The ledger: per model, the append-only sequence of what happened, each change with a position of its own.

What writes it is here: `add` and `remove` examples, `restore` removed ones, `change_spec`.
"""

from core.ledger.additions import Added, add
from core.ledger.removals import Removed, remove, restore
from core.ledger.specs import change_spec

__all__ = ["Added", "Removed", "add", "change_spec", "remove", "restore"]
