"""The membership-inference audit: can an onlooker tell removed examples from never-seen ones by their loss?"""

from __future__ import annotations

import torch
from torch import Tensor

from core.kprior.data.examples import Data
from core.kprior.model.predictor import Predictor


def membership_auc(predictor: Predictor, w: Tensor, suspects: Data, strangers: Data) -> float:
    """The chance that a suspect has a smaller loss than a stranger, ties counting half. 0.5: they cannot be told apart.

    Suspects are examples that were removed (or, before removal, are to be); strangers were never trained on. Both
    should come from the same population, or the figure speaks of that difference.
    """
    return auc(losses(predictor, w, suspects), losses(predictor, w, strangers))


def auc(a: Tensor, b: Tensor) -> float:
    """The chance that a loss of `a` is smaller than one of `b`, ties counting half."""
    if len(a) == 0 or len(b) == 0:
        raise ValueError("the audit needs examples on both sides")
    ranked = b.sort().values
    above = len(b) - torch.searchsorted(ranked, a, right=True)
    equal = torch.searchsorted(ranked, a, right=True) - torch.searchsorted(ranked, a, right=False)
    return float((above.double() + 0.5 * equal.double()).mean() / len(b))


def losses(predictor: Predictor, w: Tensor, data: Data) -> Tensor:
    """l(y, f) of each example, above the least that its y can have."""
    parts = [torch.zeros(0, dtype=predictor.dtype, device=predictor.device)]
    with torch.no_grad():
        for chunk in data:
            f = predictor.outputs(w, chunk.x)
            parts.append(predictor.family.excess(chunk.y.to(f), f))
    return torch.cat(parts)
