"""Adaptation of a GLM whose Hessian fits in memory: exact sums at the anchor, and a certificate without a pass."""

from core.kprior.adaptation.anchor_sums import change_sums
from core.kprior.adaptation.request import AdaptationRequest
from core.kprior.adaptation.result import Result
from core.kprior.certificate.dense import certificate_of
from core.kprior.passes.cost import Cost

MAX_RELATIVE_BOUND = 1e3
"""A larger bound, relative to the weights, means that outputs have moved very far."""


def adapt_dense(request: AdaptationRequest) -> Result:
    """Update the sums at the anchor, minimise the anchored objective, and bound the distance to a retrain."""
    state, training, cost = request.state, request.training, Cost()
    with cost.timed():
        anchored = change_sums(request, cost)
        w = anchored.solve(state.w, training, cost)
        bound = anchored.bound(w)
        if not bound.distance <= MAX_RELATIVE_BOUND * float(w.norm()):
            w = anchored.solve_by_secants(w, training, cost)
            bound = anchored.bound(w)
        new_state = anchored.state(w, request.task_set.regularizer or state.regularizer_spec)
        certificate = certificate_of(anchored, bound, w, 0, request.holdout)
    return Result(new_state, anchored.rows, cost, True, certificate)
