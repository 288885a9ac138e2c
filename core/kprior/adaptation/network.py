"""Adaptation of a network within a budget of row visits that does not depend on the number of examples.

    retained rows  drawn at random; true labels, and the old network's soft labels with a small weight, against drift
    added rows     true labels; at least a quarter of every minibatch, weighted by their true frequency
    removed rows   pushed away from their labels until their loss is that of unseen rows (`objective/forgetting.py`)

The budget is spent in stages. After each stage the network is audited (`certificate/network.py`), and the adaptation
ends when the metrics are good. No theorem bounds the result; its certificate reports what was measured.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.adaptation.network_survey import Survey, survey_change
from core.kprior.adaptation.request import AdaptationRequest
from core.kprior.adaptation.result import Result
from core.kprior.certificate.audit import Audit
from core.kprior.certificate.certificate import Certificate
from core.kprior.data.examples import Examples
from core.kprior.data.random_samples import Teach, sample_rows
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.memory.selection import MemorySelection, select_again
from core.kprior.model.predictor import Predictor
from core.kprior.objective.forgetting import push_away
from core.kprior.objective.transfer import transplant
from core.kprior.passes.cost import Cost
from core.kprior.passes.last_layer import estimate_last_layer, has_last_layer, last_size
from core.kprior.passes.row_losses import audit_rows
from core.kprior.solvers import Progress, SolverError
from core.kprior.solvers.budgeted_adam import Cooling, MeanPenalty, descend
from core.kprior.state import State, align
from core.kprior.state.anchor import Anchor

STAGES, NEW_BODY_STAGES = (0.6, 1.0), (1.0,)
"""Fractions of the budget after which the network is audited; a new architecture needs the whole budget."""
RATE_DIVISOR, TRIAL_FRACTION = 4, 0.05
"""A new architecture may need a smaller learning rate; both rates are tried, each with this fraction of the budget."""
SOFT_LABEL_WEIGHT, TEMPERATURE = 0.2, 4.0
"""The weight of the old network's soft labels, and their temperature. They keep the weights close to the old ones; a
new architecture, which starts elsewhere, learns from true labels alone."""
REMOVED_ROW_WEIGHT, MAX_REMOVED_PER_BATCH = 0.5, 32
"""The weight of a removed row relative to a retained one, and the maximum number of removed rows in a minibatch."""
LAST_LAYER_ROWS, MIN_LAST_LAYER_ROWS = 4_000, 500
"""Number of rows that the curvature of the last layer is estimated from, and the smallest number of retained and of
added ones."""


def adapt_network(request: AdaptationRequest) -> Result:
    """Survey the change, unless `draw` is a survey already, and adapt within the budget."""
    draw = request.draw
    if draw is None:
        raise ValueError("A network is adapted with rows of the retained data: pass `draw`.")
    if isinstance(draw, Survey):
        survey = draw
    else:
        survey = survey_change(request.state, request.tasks, draw, training=request.training, holdout=request.holdout)
    return adapt_surveyed(survey, request.memory, request.policy, request.progress)


def adapt_surveyed(survey: Survey, memory: Examples, policy: MemoryPolicy, progress: Progress | None = None) -> Result:
    """Adapt a network within the survey's budget. The certificate of the result is the network's audit."""
    cost = Cost() + survey.cost
    with cost.timed(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(survey.seed)  # dropout draws from the global generator
        w, audit = descend_in_stages(survey, cost, progress)
        state, rows = next_network(survey, memory, policy, w)
    return Result(state, rows, cost, True, certificate_from_audit(audit))


def certificate_from_audit(audit: Audit) -> Certificate:
    """The certificate of a network, with measurements in place of a bound."""
    return Certificate("measured", math.nan, 0, audit=audit)


def next_network(survey: Survey, memory: Examples, policy: MemoryPolicy, w: Tensor) -> tuple[State, Examples]:
    """The state of the new version; its memory is selected from the retained part of the old one and the added rows.

    Sums over past data are not carried on, so nothing remains of a sum that included a removed row.
    """
    state, predictor, regularizer = survey.state, survey.predictor, survey.regularizer
    stays = ~torch.isin(state.memory.key, survey.removed_keys)
    kept = align(state, memory).take(stays)
    importance = state.memory.weight[stays.to(state.memory.weight.device)]
    if len(kept):
        importance = importance * (survey.retained_count / float(importance.sum()))
    generation = state.memory.generation + 1
    selection = MemorySelection(policy, policy.size(survey.count), predictor, w, None, survey.seed)
    remembered, rows = select_again(selection, kept, importance, survey.task_set.added, generation)
    anchor = Anchor(w, -regularizer.gradient(w), None)
    spec = survey.task_set.regularizer or state.regularizer_spec
    # Since no sums are carried on, the curvature of the last layer is estimated from a few retained rows.
    last_layer = None
    if has_last_layer(predictor):
        share = survey.added_count / max(1, survey.count)
        few = None if survey.added is None else sample_rows([[survey.added]], fraction_of(LAST_LAYER_ROWS, share), 0)
        drawn = survey.draw(fraction_of(LAST_LAYER_ROWS, 1 - share), survey.seed)
        last_layer = estimate_last_layer(predictor, w, [(drawn, survey.retained_count), (few, survey.added_count)])
    state = State(predictor, regularizer, spec, w, anchor, remembered, survey.count, last_layer=last_layer)
    return state, rows


def fraction_of(rows: int, share: float) -> int:
    """A share of some rows, but enough of them for an estimate.

    >>> fraction_of(4_000, 0.3), fraction_of(4_000, 0.001)
    (1200, 500)
    """
    return max(MIN_LAST_LAYER_ROWS, round(rows * share))


def descend_in_stages(survey: Survey, cost: Cost, progress: Progress | None = None) -> tuple[Tensor, Audit]:
    """The new weights and their audit."""
    predictor = survey.predictor
    new_body = predictor is not survey.state.predictor
    w = transplant(survey.state, predictor, survey.initial_weights(predictor) if new_body else None)
    w = reset_lost_classes(predictor, w, survey.lost)
    step_loss, size = step_loss_of(survey, cost)
    spent = cost.backward_passes
    whole = max(size, survey.budget - spent)

    def report(fraction: float) -> None:
        if progress is not None:
            visits = cost.backward_passes
            progress(min(1.0, (visits - spent) / whole), f"adapting: {visits} of at most {survey.budget} row visits")

    begun, rate, left = 0.0, survey.rate, whole
    penalty = MeanPenalty(survey.regularizer, survey.count)
    if new_body:
        rate = choose_rate(survey, w, step_loss, max(1, int(TRIAL_FRACTION * whole / size)), cost)
        left = max(size, survey.budget - cost.backward_passes)
    for stage in NEW_BODY_STAGES if new_body else STAGES:
        steps = max(1, int((stage - begun) * left / size))
        w = descend(w, step_loss, steps, cost, cooling=Cooling(rate), penalty=penalty, progress=report).w
        begun = stage
        audit = survey.yardstick.measure(predictor, w, cost)
        # A loss that is accepted of a simpler model is no reason to stop early. Progress is no reason to go on: the
        # rate has fallen to zero, and at the full rate again, the weights first get worse.
        if not replace(audit, altered=False).objection:
            break
    return w, audit


def reset_lost_classes(predictor: Predictor, w: Tensor, lost: Tensor | None) -> Tensor:
    """The weights with a blank output for every class without a remaining row.

    All that this row of the last layer contains was learnt from removed rows or against them. Pushed down as a whole,
    it would still rank them first.
    """
    outputs, size = predictor.family.outputs, last_size(predictor)
    if lost is None or not bool(lost.any()) or outputs != len(lost) or size == 0:
        return w
    body, last = w[:-size], w[-size:].clone()
    last[:-outputs].view(outputs, -1)[lost] = 0.0
    last[-outputs:][lost] = last[-outputs:].min()
    return torch.cat([body, last])


def choose_rate(
    survey: Survey,
    w: Tensor,
    step_loss: Callable[[Tensor], tuple[Tensor, int]],
    steps: int,
    cost: Cost,
) -> float:
    """The learning rate that reaches the lower loss on unseen rows, starting from w.

    If both diverge, the descent that follows raises an error.
    """
    penalty, unseen = MeanPenalty(survey.regularizer, survey.count), survey.yardstick.unseen
    losses = {}
    for rate in (survey.rate, survey.rate / RATE_DIVISOR):
        try:
            tried = descend(w, step_loss, steps, cost, cooling=Cooling(rate), penalty=penalty).w
        except SolverError:
            losses[rate] = math.inf
            continue
        loss = float(audit_rows(survey.predictor, tried, unseen).losses.mean())
        losses[rate] = math.inf if math.isnan(loss) else loss
        cost.forward_passes += len(unseen)
    return min(losses, key=lambda rate: losses[rate])


def step_loss_of(survey: Survey, cost: Cost) -> tuple[Callable[[Tensor], tuple[Tensor, int]], int]:
    """A function that computes the loss of the next minibatch, and the number of rows in a minibatch."""
    predictor, state = survey.predictor, survey.state
    rows = survey.minibatches(predictor, order=2, teach=teacher_of(survey, cost))
    family, generator = predictor.family, torch.Generator().manual_seed(survey.seed)
    size, kept = len(rows), rows.kept
    pushed, short, z_removed, y_removed, level = 0, None, None, None, None
    judgement = survey.yardstick.judgement
    if survey.removed is not None and judgement is not None:
        short = (judgement.level - audit_rows(state.predictor, state.w, survey.removed).losses).clamp(min=0)
        cost.forward_passes += len(survey.removed)
        pushed = min(MAX_REMOVED_PER_BATCH, size // 2, int((short > 0.1 * judgement.level.mean()).sum()))
        z_removed = predictor.encode(survey.removed.x)
        y_removed, level = survey.removed.y.to(z_removed), judgement.level.to(z_removed)

    def step_loss(w: Tensor) -> tuple[Tensor, int]:
        z, y, weight, soft = rows.take()
        if pushed and short is not None and z_removed is not None:
            chosen = torch.multinomial(short, pushed, replacement=True, generator=generator)
            z = torch.cat([z, z_removed[chosen]])
        f = predictor.outputs_of_encoded(w, z, training=True)
        loss = (weight * family.loss(y, f[:size])).mean()
        if soft is not None:
            drift = family.loss(soft, f[:kept] / TEMPERATURE)
            loss = loss + SOFT_LABEL_WEIGHT * TEMPERATURE**2 * (weight[:kept] * drift).sum() / size
        if pushed and y_removed is not None and level is not None:
            loss = (
                loss + REMOVED_ROW_WEIGHT * push_away(family, y_removed[chosen], f[size:], level[chosen]).sum() / size
            )
        return loss, len(z)

    return step_loss, size + pushed


def teacher_of(survey: Survey, cost: Cost) -> Teach | None:
    """The soft labels of the old network; None if the new one starts elsewhere."""
    state, tilt = survey.state, survey.tilt
    if survey.predictor is not state.predictor:
        return None

    @torch.no_grad()
    def teach(z: Tensor) -> Tensor:
        cost.forward_passes += len(z)
        f = state.predictor.outputs_of_encoded(state.w, z.to(state.w)).to(z)
        soft: Tensor = state.predictor.family.mean((f if tilt is None else f + tilt.to(f)) / TEMPERATURE)
        return soft

    return teach
