"""Changes of the input, the target or the loss: the same model, as far as possible, with new columns or classes."""

from core.kprior.adaptation.schema.change import change_schema
from core.kprior.adaptation.schema.untransferable import Untransferable

__all__ = ["Untransferable", "change_schema"]
