"""The inverse Hessian of a head as analyses use it: exact, or exact in the main directions of a wide head.

For a wide head, features are split into their components z = U' phi along the directions U of most curvature, and the
rest, in which the penalty dominates:

    phi_i' [H^-1]_kl phi_i  ~  z_i' [(U' H U)^-1]_kl z_i  +  [k = l] (|phi_i|^2 - |z_i|^2) / (delta + c_k)

where c_k is the mean curvature of output k in the directions that are left out. Features without a penalty, usually the
bias, are always among the directions.

If the outputs of a softmax share their penalties D, its Hessian separates the mean of the outputs, which affects no
prediction, from their deviations, which are E q with E = (I; -1'): H^-1 = E (E' H E)^-1 E' + (1 1'/K) (x) D^-1.
Leverages need only the first part, which has K - 1 outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from core.kprior.analyses.head import Head, HeadData
from core.kprior.curvature import Full, cholesky, glm_hessian
from core.kprior.state import State

MAX_EXACT_WEIGHTS = 2_500
"""Number of weights up to which the whole Hessian is used."""
PRODUCT_NUMBERS = 2**21
"""Products of features that are kept in memory at once."""
MAX_SHORT_SPREAD = 100.0
"""The largest ratio of diagonal elements of a Cholesky factor with which a matrix is inverted in float32."""
MAX_SPREAD = 0.02
"""How far outputs may have moved since the curvature of a state was measured, for the curvature still to be used."""


@dataclass(frozen=True)
class HeadCurvature:
    """The curvature of a head's rows at some weights."""

    matrix: Tensor
    """(K r, K r) in the directions U."""
    directions: Tensor | None
    """(D, r) U; None if they are all features."""
    left: Tensor
    """(K,) c_k: the mean curvature in all other directions."""

    @classmethod
    def of(cls, state: State, head: Head, data: HeadData) -> HeadCurvature:
        """The curvature that a state knows; otherwise that of all rows, in a pass."""
        known = known_curvature(state)
        if known is None:
            return cls.measure(head, data)
        return cls(known, None, torch.zeros(head.outputs, dtype=head.w.dtype))

    @classmethod
    def measure(cls, head: Head, data: HeadData, stride: int = 1) -> HeadCurvature:
        """Sum the curvature of all rows, or of every `stride`-th row times `stride`, at the head's weights."""
        K, D = head.outputs, head.size // head.outputs
        wide = head.size > MAX_EXACT_WEIGHTS
        U = main_directions(head, data, MAX_EXACT_WEIGHTS // K) if wide else None
        r = D if U is None else U.shape[1]
        G, total = torch.zeros(K * r, K * r, dtype=head.w.dtype), torch.zeros(K, dtype=head.w.dtype)
        for rows in data:
            some = rows.every(stride)
            f = head.predict(some.phi)
            G += glm_hessian(some.phi if U is None else some.phi @ U, head.family, f, some.weight, some.y)
            if wide:
                square = (some.phi**2).sum(1, keepdim=True)
                total += some.weigh(head.family.curvature(some.y, f) * square).sum(0)
        left = (total - G.diagonal().view(K, r).sum(1)).clamp(min=0) / max(1, D - r) if wide else total
        return cls(stride * G, U, stride * left)

    def scaled(self, factor: float) -> HeadCurvature:
        """The curvature of so many times as many rows."""
        return HeadCurvature(factor * self.matrix, self.directions, factor * self.left)

    def inverse(self, head: Head) -> HeadInverse:
        """H^-1, H being the curvature plus the head's penalty."""
        if (U := self.directions) is None:
            H = head.complete(self.matrix)
            if separates_mean(head):
                return HeadInverse(head, None, self.left, invert(deviations(H, head.outputs), head.outputs), True)
            return HeadInverse(head, None, self.left, invert(H, head.outputs))
        K, (D, r) = head.outputs, U.shape
        delta = head.regularizer.delta.view(K, D)
        H = self.matrix + torch.block_diag(*((U.T * row) @ U for row in delta))
        if (shifts := head.shifts()) is not None:
            moved = torch.einsum("kds,dr->krs", shifts.view(K, D, -1), U).reshape(K * r, -1)
            H = H + H.diagonal().mean() * moved @ moved.T
        floor = torch.where(delta > 0, delta, torch.inf).amin(1).nan_to_num(posinf=1.0)
        return HeadInverse(head, U, floor + self.left, invert(H, K))


@dataclass(frozen=True)
class HeadInverse:
    """H^-1 of a head, applied to rows."""

    head: Head
    directions: Tensor | None
    """(D, r) U; None if they are all features."""
    rest: Tensor
    """(K,) delta + c_k: the Hessian in all other directions."""
    inner: Tensor
    """(J r, J r) the inverse in the directions U; J is K, or K - 1 if `reduced`."""
    reduced: bool = False
    """Whether `inner` is (E' H E)^-1."""

    @cached_property
    def matrix(self) -> Tensor:
        """(K r, K r) the inverse, in the directions U."""
        if not self.reduced:
            return self.inner
        K = self.head.outputs
        r = len(self.inner) // (K - 1)
        made = torch.empty(K, r, K, r, dtype=self.inner.dtype)
        made[:-1, :, :-1] = self.inner.view(K - 1, r, K - 1, r)
        made[:-1, :, -1] = -made[:-1, :, :-1].sum(2)
        made[-1] = -made[:-1].sum(0)
        delta = self.head.regularizer.delta[:r]
        return made.view(K * r, K * r) + (torch.where(delta > 0, 1 / delta, 0.0).diag() / K).repeat(K, K)

    def contrast(self, values: Tensor) -> Tensor:
        """E' v, or v itself if the inverse is not reduced: (n, K) -> (n, J)."""
        return values[:, :-1] - values[:, -1:] if self.reduced else values

    def expand(self, values: Tensor) -> Tensor:
        """E v, or v itself: (n, J) -> (n, K)."""
        return torch.cat([values, -values.sum(1, keepdim=True)], 1) if self.reduced else values

    def reduce(self, phi: Tensor) -> Tensor:
        """(n, D) -> (n, r)."""
        return phi if self.directions is None else phi @ self.directions

    def leverages(self, phi: Tensor) -> Tensor:
        """phi' H^-1 phi between all outputs, or between those of `contrast`: (n, D) -> (n, J, J)."""
        z = self.reduce(phi)
        one = self.head.outputs == 1
        made = ((z @ self.inner) * z).sum(1).view(-1, 1, 1) if one else self.products_between(z)
        if self.directions is not None:
            rest = ((phi**2).sum(1) - (z**2).sum(1)).clamp(min=0)
            made += torch.diag_embed(rest[:, None] / self.rest)
        return made

    def products_between(self, z: Tensor) -> Tensor:
        """z' [H^-1]_kl z for all pairs of outputs: (n, r) -> (n, J, J).

        By one product of all z_a z_b, a <= b, with the symmetric part of each block, in float32: a relative error of
        1e-6 does not matter here.
        """
        r, n = z.shape[1], len(z)
        K = len(self.inner) // r
        left, right = torch.triu_indices(K, K)
        blocks = self.inner.view(K, r, K, r).float()[left, :, right]
        both = blocks + blocks.transpose(1, 2)
        both.diagonal(dim1=1, dim2=2).div_(2)
        first, second = torch.triu_indices(r, r)
        factors = both[:, first, second]
        made, short = torch.empty(K, K, n), z.float().T.contiguous()
        step = max(1, PRODUCT_NUMBERS // len(first))
        products = torch.empty(len(first), min(step, n))
        for start in range(0, n, step):
            some, place = short[:, start : start + step], 0
            size = some.shape[1]
            for a in range(r):
                torch.mul(some[a:], some[a], out=products[place : place + r - a, :size])
                place += r - a
            found = factors @ products[:, :size]
            made[left, right, start : start + step] = found
            made[right, left, start : start + step] = found
        return made.permute(2, 0, 1).to(z).contiguous()

    def solve(self, g: Tensor) -> Tensor:
        """H^-1 g: (..., P) -> (..., P)."""
        if self.directions is None:
            return g @ self.matrix
        U, K = self.directions, self.head.outputs
        rows = g.view(*g.shape[:-1], K, -1)
        z = rows @ U
        inside = (z.reshape(*g.shape[:-1], -1) @ self.matrix).view_as(z) @ U.T
        outside = (rows - z @ U.T) / self.rest[:, None]
        return (inside + outside).reshape(g.shape)


def invert(H: Tensor, outputs: int) -> Tensor:
    """H^-1; for several outputs, whose leverages are computed in float32, in float32 if H is well conditioned."""
    if outputs > 1:
        factor, info = torch.linalg.cholesky_ex(H.float())
        diagonal = factor.diagonal()
        if int(info) == 0 and float(diagonal.max()) < MAX_SHORT_SPREAD * float(diagonal.min()):
            return torch.cholesky_inverse(factor).to(H)
    return torch.cholesky_inverse(cholesky(H))


def separates_mean(head: Head) -> bool:
    """Whether the Hessian of a head separates the mean of its outputs from their deviations."""
    delta = head.regularizer.delta.view(head.outputs, -1)
    return head.family.coupled and bool((delta == delta[:1]).all())


def deviations(H: Tensor, outputs: int) -> Tensor:
    """E' H E with E = (I; -1'): (K D, K D) -> ((K - 1) D, (K - 1) D)."""
    blocks = H.view(outputs, len(H) // outputs, outputs, -1)
    made = blocks[:-1, :, :-1] - blocks[:-1, :, -1:] - blocks[-1:, :, :-1] + blocks[-1:, :, -1:]
    size = len(H) - len(H) // outputs
    return made.reshape(size, size)


def main_directions(head: Head, data: HeadData, most: int) -> Tensor:
    """(D, r) orthonormal directions of the features with most curvature; those without a penalty come first."""
    K = head.outputs
    delta = head.regularizer.delta.view(K, -1)
    D = delta.shape[1]
    S = torch.zeros(D, D, dtype=head.w.dtype)
    for rows in data:
        curved = rows.weigh(head.family.curvature(rows.y, head.predict(rows.phi)).sum(1))
        S += (rows.phi * curved[:, None]).T @ rows.phi
    free = (delta == 0).any(0)
    eye = torch.eye(D, dtype=S.dtype)[:, free]
    S[free], S[:, free] = 0.0, 0.0
    r = max(0, min(D, most) - int(free.sum()))
    vectors = torch.linalg.eigh(S)[1][:, -r:] if r else eye[:, :0]
    if r >= D - int(free.sum()):  # all of them: S has a zero eigenvalue for each free feature, which must not be taken
        vectors = torch.eye(D, dtype=S.dtype)[:, ~free]
    return torch.cat([eye, vectors], 1)


def known_curvature(state: State) -> Tensor | None:
    """The (P, P) curvature that a GLM's state carries, if it still describes its weights; None otherwise."""
    anchor = state.anchor
    if not state.predictor.linear or not isinstance(anchor.curvature, Full) or not anchor.exact:
        return None
    step = state.w - anchor.w
    length = float(step @ anchor.curvature.product(step) + (state.regularizer.delta * step * step).sum())
    spread = state.predictor.family.self_concordance * (anchor.peak * max(0.0, length)) ** 0.5
    return anchor.curvature.matrix if spread <= MAX_SPREAD else None
