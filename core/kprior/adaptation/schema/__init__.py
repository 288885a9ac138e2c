"""A state whose input or target is another: the same model, as far as it can be, in terms of new columns or classes."""

from core.kprior.adaptation.schema.change import change_schema
from core.kprior.adaptation.schema.untransferable import Untransferable

__all__ = ["Untransferable", "change_schema"]
