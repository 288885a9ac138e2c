"""Moves the anchor of a state to its weights, for adaptations that cannot carry the sums on."""

import torch

from core.kprior.certificate.anchored_bound import known_gradient
from core.kprior.certificate.anchored_model import AnchoredModel
from core.kprior.curvature import Full
from core.kprior.data.examples import Examples
from core.kprior.state import State, align, move_anchor
from core.kprior.state.anchor import Anchor


def recentre(state: State, memory: Examples) -> State:
    """The state with its anchor at its weights; the sums there are estimated from the old sums and the memory."""
    if torch.equal(state.w, state.anchor.w):
        return state
    predictor, anchor = state.predictor, state.anchor
    if not isinstance(anchor.curvature, Full):
        return recentre_roughly(state, memory)
    anchored = AnchoredModel.of(state, memory)
    gradient = known_gradient(predictor, anchor, state.regularizer, anchored.exact, state.w)
    G = anchor.curvature.matrix.clone()
    for rows in anchored.exact:
        G += rows.hessian(predictor.family, rows.outputs(state.w))
        G -= rows.hessian(predictor.family, rows.f0)
    curvature = Full(G)
    curvature.clip()
    value = anchor.tangent_value(state.w - anchor.w)
    moved = Anchor(
        state.w, gradient - state.regularizer.gradient(state.w), curvature, value=value, turnover=anchor.turnover
    )
    return move_anchor(state, moved, anchored.rows)


def recentre_roughly(state: State, memory: Examples) -> State:
    """The same for a state that does not carry its whole curvature."""
    anchor, gradient = state.anchor, state.anchor.gradient
    if anchor.curvature is not None:
        gradient = gradient + anchor.curvature.product(state.w - anchor.w)
    return move_anchor(state, Anchor(state.w, gradient, anchor.curvature), align(state, memory))
