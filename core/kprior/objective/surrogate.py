"""Sums over the past that let an old model teach a new one about inputs that are no longer at hand.

**Change into a linear model.** For new weights theta the past contributes, to second order,
sum_i s_i/2 |phi_i' theta - f*_i|^2 with s_i a slope of h between f*_i and what the new model will say. That is unknown,
but a smaller class explains less: its outputs shrink. s_i is the mean slope of h from f*_i to SHRINKAGE f*_i; the
tangent h'(f*_i) would be nearly zero for every example the old model was sure of.

**Mixed inputs.** x = a u_i + (1 - a) u_j with a uniform has 2/3 of the inputs' covariance. Noise with a third of it
puts back what mixing takes away, and reaches directions that no memory input has; the second moments give it.

All are sums over examples and are carried like curvature: updated when examples come and go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.curvature import Full, balance
from core.kprior.data.examples import Examples
from core.kprior.model.architectures import Linear
from core.kprior.model.encoders import size_of
from core.kprior.model.predictor import Predictor

SHRINKAGE = 1 / 3
MAX_INPUTS = 2_000
"""Inputs up to which the sums are kept."""


@dataclass
class Surrogate:
    """Sums over examples i with weights v_i; phi_i = encoded inputs and 1, D of them."""

    gram: Tensor
    """(D, D) sum_i v_i s_i phi_i phi_i'."""
    cross: Tensor
    """(D, K) sum_i v_i s_i phi_i f*_i'."""
    moment: Tensor
    """(D, D) sum_i v_i phi_i phi_i'."""

    @classmethod
    def zeros(cls, predictor: Predictor) -> Surrogate | None:
        """None where it would be of no use: a model that is linear already, or too many inputs."""
        size = size_of(predictor.encoder.shape) + 1
        plain = isinstance(predictor.body, Linear) and predictor.body.degree == 1
        if plain or size > MAX_INPUTS:
            return None
        square = torch.zeros(size, size, dtype=torch.float64, device=predictor.device)
        return cls(square, square.new_zeros(size, predictor.family.outputs), square.clone())

    def copy(self) -> Surrogate:
        """An independent copy."""
        return Surrogate(self.gram.clone(), self.cross.clone(), self.moment.clone())

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        """Add examples, or with negative weights take them away."""
        z = predictor.encode(x)
        f = predictor.outputs_of_encoded(w, z).double()
        if f.shape[1] > 1:
            f = f - f.mean(1, keepdim=True)
        z = z.flatten(1).double()
        phi = torch.cat([z, torch.ones_like(z[:, :1])], 1)
        v = torch.ones_like(phi[:, 0]) if weight is None else weight.double()
        scaled = phi * (predictor.family.secant(f, SHRINKAGE) * v)[:, None]
        self.gram += scaled.T @ phi
        self.cross += scaled.T @ f
        self.moment += (phi * v[:, None]).T @ phi

    def merge(self, other: Surrogate) -> None:
        """Add the sums over other examples."""
        self.gram += other.gram
        self.cross += other.cross
        self.moment += other.moment

    def replace(self, predictor: Predictor, old: Tensor, new: Tensor, x: Tensor, weight: Tensor) -> None:
        """Let examples that are at hand speak for the new weights instead of the old, as far as they can be told apart.

        Their weights are balanced: more than what they have of the sums cannot be taken out.
        """
        if len(x) == 0:
            return
        own = Surrogate(*(torch.zeros_like(t) for t in vars(self).values()))
        own.add(predictor, old, x, weight)
        weight = weight * balance(self.gram, own.gram)
        moment = self.moment
        self.add(predictor, old, x, -weight)
        self.add(predictor, new, x, weight)
        self.moment = moment

    def clip(self) -> None:
        """Restore positive semi-definiteness after examples were taken away."""
        whole = Full(self.gram)
        whole.clip()
        self.gram = whole.matrix

    def input_root(self) -> Tensor:
        """L with L L' the covariance of the encoded inputs: (D - 1, D - 1)."""
        count = self.moment[-1, -1].clamp(min=1e-30)  # rows may weigh less than one
        mean = self.moment[-1, :-1] / count
        covariance = self.moment[:-1, :-1] / count - mean[:, None] * mean
        # constant inputs, and examples taken away again, leave eigenvalues around zero on either side
        values, vectors = torch.linalg.eigh(covariance)
        root: Tensor = vectors * values.clamp(min=0).sqrt()
        return root


def change_surrogate(
    surrogate: Surrogate | None, predictor: Predictor, w: Tensor, removed: Iterable[Examples], added: Iterable[Examples]
) -> Surrogate | None:
    """The sums without examples that went and with those that came, all at the weights w."""
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
    """The sums at other weights, as far as the rows of a memory, and how many each stands for, can tell."""
    if surrogate is None:
        return None
    moved = surrogate.copy()
    own = predictor.weigh(rows)
    moved.replace(predictor, old, new, rows.x, importance if own is None else importance * own)
    return moved
