"""Adapting a network by a budget of row visits that does not depend on the number of examples.

    retained rows  drawn at random, true labels, and a little of the old network's soft labels against drift
    added rows     true labels, a quarter of every minibatch at least, counted at their natural share
    removed rows   pushed away from their labels until they lose as much as rows never seen (`objective/forgetting.py`)

The budget is spent in stages; after each the network is audited (`certificate/network.py`), and when the figures are
good it ends. There is no theorem: what is said of the result is what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.adaptation.survey import Survey
from core.kprior.anchor import Anchor
from core.kprior.certificate.certificate import Certificate
from core.kprior.certificate.network import Audit
from core.kprior.cost import Cost
from core.kprior.data.examples import Examples
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.memory.selection import MemorySelection, select_again
from core.kprior.objective.forgetting import push_away
from core.kprior.objective.transfer import transplant
from core.kprior.passes.last_layer import estimate_last_layer, has_last_layer
from core.kprior.passes.row_losses import audit_rows
from core.kprior.result import Result
from core.kprior.solvers import Progress, SolverError, Watch
from core.kprior.solvers.budget import descend
from core.kprior.state import State, align

STAGES, NEW_BODY_STAGES = (0.6, 1.0), (1.0,)
"""Of the budget, after which the network is audited; a new architecture needs all of it."""
RATE_DIVISOR, TRIAL_FRACTION = 4, 0.05
"""A new architecture may need a smaller learning rate: both are tried, each with this fraction of the budget."""
SOFT_LABEL_WEIGHT, TEMPERATURE = 0.2, 4.0
"""The weight of the old network's soft labels, and their temperature. They hold weights where they were: a new
architecture, which begins elsewhere, learns from true labels alone."""
REMOVED_ROW_WEIGHT, MAX_REMOVED_PER_BATCH = 0.5, 32
"""The weight of a removed row relative to a retained one, and how many of them a minibatch has at most."""
LAST_LAYER_ROWS = 4_000
"""Rows that the curvature of a last layer is estimated from."""


def adapt_network(
    survey: Survey, memory: Examples, policy: MemoryPolicy, progress: Progress | None = None, watch: Watch | None = None
) -> Result:
    """Adapt a network within the survey's budget.

    Parameters
    ----------
    survey
        What is to change, and what is known of the data.
    memory
        The rows that the old state's memory refers to.
    policy
        Of the new memory.
    progress, watch
        As for `adapt`.

    Returns
    -------
    Result
        The adapted network; its certificate holds the audit. Not converged if it was told to stop.
    """
    cost = Cost() + survey.cost
    with cost.timed(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(survey.seed)  # dropout draws from the global generator
        w, audit, converged = descend_in_stages(survey, cost, progress, watch)
        state, rows = next_network(survey, memory, policy, w)
    return Result(state, rows, cost, converged, certificate_from_audit(audit))


def certificate_from_audit(audit: Audit) -> Certificate:
    """The certificate of a network: what was measured stands in the place of a bound."""
    return Certificate("measured", math.nan, 0, audit=audit)


def next_network(survey: Survey, memory: Examples, policy: MemoryPolicy, w: Tensor) -> tuple[State, Examples]:
    """The new version's state; its memory is chosen from what stays of the old one and what was added.

    Sums over the past are not carried along: nothing that a removed row was part of stays.
    """
    state, predictor, regularizer = survey.state, survey.predictor, survey.regularizer
    stays = ~torch.isin(state.memory.key, survey.removed_keys)
    kept = align(state, memory).take(stays)
    importance = state.memory.weight[stays.to(state.memory.weight.device)]
    if len(kept):
        importance = importance * (survey.retained_count / float(importance.sum()))
    generation = state.memory.generation + 1
    selection = MemorySelection(policy, policy.size(survey.count), predictor, w, None, survey.seed)
    remembered, rows = select_again(selection, kept, importance, survey.change.added, generation)
    anchor = Anchor(w, -regularizer.gradient(w), None)
    spec = survey.change.regularizer or state.regularizer_spec
    # sums over the past are not carried: a few rows of what stays tell how sure the last layer is
    drawn = survey.draw(LAST_LAYER_ROWS, survey.seed) if has_last_layer(predictor) else None
    last_layer = estimate_last_layer(predictor, w, [(drawn, survey.retained_count), (survey.added, survey.added_count)])
    state = State(predictor, regularizer, spec, w, anchor, remembered, survey.count, last_layer=last_layer)
    return state, rows


def descend_in_stages(
    survey: Survey, cost: Cost, progress: Progress | None = None, watch: Watch | None = None
) -> tuple[Tensor, Audit, bool]:
    """The new weights, what was measured of them, and whether nobody told it to stop."""
    predictor = survey.predictor
    new_body = predictor is not survey.state.predictor
    grows = survey.added_count > 0 or new_body
    w = transplant(survey.state, predictor, survey.initial_weights(predictor) if new_body else None)
    step_loss, size = step_loss_of(survey, cost)
    spent, last = cost.backward_passes, survey.yardstick.before
    whole = max(size, survey.budget - spent)

    def report(fraction: float) -> None:
        if progress is not None:
            visits = cost.backward_passes
            progress(min(1.0, (visits - spent) / whole), f"adapting: {visits} of at most {survey.budget} examples seen")

    begun, rate, left = 0.0, survey.rate, whole
    if new_body:
        rate = choose_rate(survey, w, step_loss, max(1, int(TRIAL_FRACTION * whole / size)), cost, watch)
        left = max(size, survey.budget - cost.backward_passes)
    for stage in NEW_BODY_STAGES if new_body else STAGES:
        steps = max(1, int((stage - begun) * left / size))
        solution = descend(
            w,
            step_loss,
            steps,
            cost,
            rate=rate,
            regularizer=survey.regularizer,
            count=survey.count,
            progress=report,
            watch=watch,
        )
        w, begun = solution.w, stage
        audit = survey.yardstick.measure(predictor, w, cost)
        if not solution.converged:
            return w, audit, False
        now = audit_rows(predictor, w, survey.yardstick.unseen).losses
        # what a simpler model may cost is no reason to end early
        if not replace(audit, altered=False).objection and not (grows and still_improves(last, now)):
            break
        last = now
    return w, audit, True


def choose_rate(
    survey: Survey,
    w: Tensor,
    step_loss: Callable[[Tensor], tuple[Tensor, int]],
    steps: int,
    cost: Cost,
    watch: Watch | None = None,
) -> float:
    """The learning rate that gets further from w in so many steps, measured on unseen rows.

    One that diverges gets nowhere; if both do, the descent that follows says so.
    """
    regularizer, count, unseen = survey.regularizer, survey.count, survey.yardstick.unseen
    losses = {}
    for rate in (survey.rate, survey.rate / RATE_DIVISOR):
        try:
            tried = descend(w, step_loss, steps, cost, rate=rate, regularizer=regularizer, count=count, watch=watch).w
        except SolverError:
            losses[rate] = math.inf
            continue
        loss = float(audit_rows(survey.predictor, tried, unseen).losses.mean())
        losses[rate] = math.inf if math.isnan(loss) else loss
        cost.forward_passes += len(unseen)
    return min(losses, key=lambda rate: losses[rate])


def still_improves(before: Tensor, after: Tensor) -> bool:
    """Whether losses on the same rows fell by more than chance."""
    gain = before - after
    return len(gain) > 1 and float(gain.mean()) > 2 * float(gain.std()) / len(gain) ** 0.5


def step_loss_of(survey: Survey, cost: Cost) -> tuple[Callable[[Tensor], tuple[Tensor, int]], int]:
    """The loss of one minibatch after another, and the rows of each."""
    predictor, state, rows = survey.predictor, survey.state, survey.minibatches(survey.predictor, order=2)
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
    tilt = 0.0 if survey.tilt is None else survey.tilt.to(rows.weight)

    def step_loss(w: Tensor) -> tuple[Tensor, int]:
        z, y, weight = rows.take()
        if pushed and short is not None and z_removed is not None:
            chosen = torch.multinomial(short, pushed, replacement=True, generator=generator)
            z = torch.cat([z, z_removed[chosen]])
        f = predictor.outputs_of_encoded(w, z, training=True)
        loss = (weight * family.loss(y, f[:size])).mean()
        if kept and predictor is state.predictor:
            with torch.no_grad():
                taught = state.predictor.outputs_of_encoded(state.w, z[:kept].to(state.w)).to(z)
                soft = family.mean((taught + tilt) / TEMPERATURE)
            drift = family.loss(soft, f[:kept] / TEMPERATURE)
            loss = loss + SOFT_LABEL_WEIGHT * TEMPERATURE**2 * (weight[:kept] * drift).sum() / size
            cost.forward_passes += kept
        if pushed and y_removed is not None and level is not None:
            loss = (
                loss + REMOVED_ROW_WEIGHT * push_away(family, y_removed[chosen], f[size:], level[chosen]).sum() / size
            )
        return loss, len(z)

    return step_loss, size + pushed
