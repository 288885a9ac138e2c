"""Sums over past data, from which a linear model learns a larger model's outputs on inputs that are not available.

For new weights theta the past contributes, to second order, sum_i s_i/2 |phi_i' theta - f*_i|^2, where s_i is a slope
of h between f*_i and the output of the new model. That output is unknown, but a smaller model class explains less, so
its outputs are smaller: s_i is the mean slope of h from f*_i to SHRINKAGE f*_i. The tangent h'(f*_i) would be nearly
zero wherever the old model is nearly certain.

The sums are stored like curvature: adding and removing examples updates them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.curvature import Full, balance
from core.kprior.data.examples import Examples
from core.kprior.model.architectures import Linear
from core.kprior.model.input_encoders import size_of
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import Leaves

SHRINKAGE = 1 / 3
MAX_INPUTS = 2_000
"""Largest number of inputs for which the sums are stored."""


@dataclass
class Surrogate:
    """Sums over examples i with weights v_i; phi_i = encoded inputs and 1, of size D."""

    gram: Tensor
    """(D, D) sum_i v_i s_i phi_i phi_i'."""
    cross: Tensor
    """(D, K) sum_i v_i s_i phi_i f*_i'."""

    @classmethod
    def zeros(cls, predictor: Predictor) -> Surrogate | None:
        """Empty sums; None if the model is linear, has too many inputs, or is a tree ensemble."""
        size = size_of(predictor.encoder.shape) + 1
        plain = isinstance(predictor.body, Linear) and predictor.body.degree == 1
        if plain or size > MAX_INPUTS or isinstance(predictor.body, Leaves):
            return None
        square = torch.zeros(size, size, dtype=torch.float64, device=predictor.device)
        return cls(square, square.new_zeros(size, predictor.family.outputs))

    def copy(self) -> Surrogate:
        """An independent copy."""
        return Surrogate(self.gram.clone(), self.cross.clone())

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        """Add examples, or remove them with negative weights."""
        z = predictor.encode(x)
        f = predictor.outputs_of_encoded(w, z).double()
        if predictor.family.coupled:
            f = f - f.mean(1, keepdim=True)
        z = z.flatten(1).double()
        phi = torch.cat([z, torch.ones_like(z[:, :1])], 1)
        v = torch.ones_like(phi[:, 0]) if weight is None else weight.double()
        scaled = phi * (predictor.family.secant(f, SHRINKAGE) * v)[:, None]
        self.gram += scaled.T @ phi
        self.cross += scaled.T @ f

    def merge(self, other: Surrogate) -> None:
        """Add the sums over other examples."""
        self.gram += other.gram
        self.cross += other.cross

    def replace(self, predictor: Predictor, old: Tensor, new: Tensor, x: Tensor, weight: Tensor) -> None:
        """Replace the contributions of available examples at the old weights by those at the new weights.

        Their weights are reduced where necessary, so that no more is removed than the sums contain.
        """
        if len(x) == 0:
            return
        own = Surrogate(*(torch.zeros_like(t) for t in vars(self).values()))
        own.add(predictor, old, x, weight)
        weight = weight * balance(self.gram, own.gram)
        self.add(predictor, old, x, -weight)
        self.add(predictor, new, x, weight)

    def clip(self) -> None:
        """Restore positive semi-definiteness after examples were removed."""
        whole = Full(self.gram)
        whole.clip()
        self.gram = whole.matrix


def change_surrogate(
    surrogate: Surrogate | None, predictor: Predictor, w: Tensor, removed: Iterable[Examples], added: Iterable[Examples]
) -> Surrogate | None:
    """The sums without removed and with added examples, all at the weights w."""
    if surrogate is None:
        return None
    changed = surrogate.copy()
    for sign, examples in ((-1.0, removed), (1.0, added)):
        for chunk in examples:
            weight = predictor.weigh(chunk)
            signs = torch.full((len(chunk),), sign, device=predictor.device)
            changed.add(predictor, w, chunk.x, signs if weight is None else sign * weight)
    return changed


def move_surrogate(
    surrogate: Surrogate | None, predictor: Predictor, old: Tensor, new: Tensor, rows: Examples, importance: Tensor
) -> Surrogate | None:
    """The sums at other weights, estimated from the rows of a memory and the number of rows that each represents."""
    if surrogate is None:
        return None
    moved = surrogate.copy()
    own = predictor.weigh(rows)
    moved.replace(predictor, old, new, rows.x, importance if own is None else importance * own)
    return moved
