"""The ledger: per model, the append-only sequence of what happened, each change with a position of its own.

What writes it is here: `add`, `remove` and `replace_examples`, `restore` removed ones, `change_spec`.
"""

from core.ledger.additions import Added, add
from core.ledger.corrections import Replaced, replace_examples
from core.ledger.removals import Removed, remove, restore
from core.ledger.specs import change_spec

__all__ = ["Added", "Removed", "Replaced", "add", "change_spec", "remove", "replace_examples", "restore"]
