"""The past data without the removed examples, and the part of its curvature that is outside the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.curvature import Curvature, Full, balance, glm_hessian
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Data, Examples
from core.kprior.model.architectures import Linear
from core.kprior.model.predictor import Predictor
from core.kprior.passes.cost import Cost
from core.kprior.state import State


@dataclass
class RetainedPast:
    """The past at w* without the removed examples."""

    keys: Tensor
    pull: Tensor
    """(P,) sum_k J_k' (y_k - h*_k): for a GLM, the gradient of the removal term."""
    curvature: Curvature | None
    surrogate: Surrogate | None

    @classmethod
    def of(cls, state: State, removed: Sequence[Data], cost: Cost) -> RetainedPast:
        predictor, w = state.predictor, state.w
        curvature = None if state.curvature is None else state.curvature.copy(predictor)
        surrogate = None if state.surrogate is None else state.surrogate.copy()
        keys = [torch.zeros(0, dtype=torch.long)]
        pull = torch.zeros_like(w)
        for chunk in (c for data in removed for c in data):
            predictor.check(chunk)
            keys.append(chunk.key.cpu())
            away = torch.full((len(chunk),), -1.0, dtype=predictor.dtype, device=predictor.device)
            weight, z = predictor.weigh(chunk), predictor.encode(chunk.x)
            coefficient = -predictor.family.residual(chunk.y.to(z), predictor.outputs_of_encoded(w, z))
            if weight is not None:
                away, coefficient = away * weight, coefficient * weight[:, None]
            if predictor.linear:
                pull += (coefficient.T @ predictor.features(chunk.x)).reshape(-1)
            if curvature is not None:
                curvature.add_rows(predictor, w, chunk, away)
            if surrogate is not None:
                surrogate.add(predictor, w, chunk.x, away)
            cost.backward_passes += len(chunk)
        if curvature is not None and len(keys) > 1:
            # Examples outside the memory entered with the curvature at earlier weights, which may have been smaller.
            curvature.clip()
        if surrogate is not None and len(keys) > 1:
            surrogate.clip()
        return cls(torch.cat(keys), pull, curvature, surrogate)


@dataclass
class CurvatureSpace:
    """The curvature of the past data in the new model's weights, before that of the memory is subtracted."""

    new: Predictor
    kept: Examples
    total: Curvature | None = None
    """G, if the new model has the weights of the old one, or some of them."""
    centre: Tensor | None = None
    offset: Tensor | None = None
    surrogate: Surrogate | None = None
    features: Tensor | None = None
    """The columns of the surrogate that the new linear model uses."""
    f_star: Tensor | None = None
    state: State | None = None

    @classmethod
    def of(
        cls,
        state: State,
        past: RetainedPast,
        new: Predictor,
        shared: tuple[Tensor, Tensor] | None,
        kept: Examples,
        f_star: Tensor,
    ) -> CurvatureSpace:
        space = cls(new, kept, state=state)
        G = past.curvature
        if new is state.predictor:
            space.total, space.centre = G, state.w
        elif isinstance(new.body, Linear) and new.body.degree == 1:
            if shared is not None and len(shared[0]) == new.size and isinstance(G, Full) and past.surrogate is None:
                # Features are dropped: G between the remaining weights, with an offset for the dropped ones.
                mine, theirs = shared
                order = theirs[torch.argsort(mine)]
                dropped = torch.ones_like(state.w, dtype=torch.bool)
                dropped[theirs] = False
                space.total = Full(G.matrix[order][:, order])
                space.centre = state.w[order]
                space.offset = -(G.matrix[order][:, dropped] @ state.w[dropped])
                space.f_star = f_star
            elif past.surrogate is not None:
                size = past.surrogate.gram.shape[0] - 1
                inputs = list(range(size)) if new.body.chosen is None else new.body.chosen.tolist()
                space.surrogate = past.surrogate
                space.features = torch.tensor([*inputs, size], device=new.device)
                space.f_star = f_star
        return space

    def weights(self, v: Tensor) -> Tensor:
        """Weights of memory rows in a sum: v times their own weights."""
        own = self.new.weigh(self.kept)
        return v if own is None else v * own.to(v)

    def memory_curvature(self, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """The part of a dense total, and of its offset, that belongs to memory rows with weights v."""
        new, kept = self.new, self.kept
        v = self.weights(v)
        if self.surrogate is not None:
            assert self.f_star is not None
            f = self.f_star.double()
            f = f - f.mean(1, keepdim=True) if new.family.coupled else f
            own = Surrogate(*(torch.zeros_like(t) for t in vars(self.surrogate).values()))
            assert self.state is not None
            own.add(self.state.predictor, self.state.w, kept.x, v)
            return own.gram[self.features][:, self.features], own.cross[self.features]
        assert self.centre is not None
        out = Full.zeros(new)
        if self.offset is None:
            out.add_rows(new, self.centre, kept, v)
            return out.matrix, None
        # the old model's curvature on the new features, and the effect of the dropped features
        assert self.f_star is not None
        phi = new.features(kept.x)
        gap = self.f_star - phi @ self.centre.view(new.family.outputs, -1).T
        pull = torch.zeros(new.family.outputs, phi.shape[1], dtype=phi.dtype, device=phi.device)
        y = kept.y.to(phi)
        if new.family.kinked:
            pull += (new.family.curvature(y, self.f_star) * gap * v[:, None]).T @ phi
        else:
            for rows, hessian in new.family.hessians(self.f_star):
                pull += torch.einsum("nkl,nl,n,nd->kd", hessian, gap[rows], v[rows], phi[rows])
        return glm_hessian(phi, new.family, self.f_star, v, y), -pull.reshape(-1)

    @property
    def dense(self) -> bool:
        """Whether the total is one matrix, against which memory weights can be balanced."""
        return self.surrogate is not None or isinstance(self.total, Full)

    def balance(self, importance: Tensor) -> Tensor:
        """c v with the largest c <= 1 for which G - c sum_M v J'LJ stays positive semi-definite."""
        if len(importance) == 0:
            return importance
        own, _ = self.memory_curvature(importance)
        if self.surrogate is not None:
            total = self.surrogate.gram[self.features][:, self.features]
        else:
            assert isinstance(self.total, Full)
            total = self.total.matrix
        return importance * balance(total, own)

    def leftover(self, v: Tensor) -> tuple[Curvature, Tensor, Tensor] | None:
        """Q, its centre, and a linear term; None if no curvature is known."""
        zero = torch.zeros(self.new.size, dtype=self.new.dtype, device=self.new.device)
        if self.surrogate is not None:
            gram, cross = self.memory_curvature(v)
            assert cross is not None
            K = self.new.family.outputs
            gram = self.surrogate.gram[self.features][:, self.features] - gram
            cross = self.surrogate.cross[self.features] - cross
            matrix = torch.block_diag(*[gram] * K)
            return Full(matrix.to(self.new.dtype)), zero, -cross.T.reshape(-1).to(self.new.dtype)
        if self.total is None or self.centre is None:
            return None
        if isinstance(self.total, Full) and self.new.linear:
            own, pull = self.memory_curvature(v)
            offset = zero if self.offset is None or pull is None else self.offset - pull
            return Full(self.total.matrix - own), self.centre, offset
        left = self.total.copy(self.new)
        if len(v):
            left.add(self.new, self.centre, self.kept.x, -self.weights(v))
        left.clip()
        return left, self.centre, zero
