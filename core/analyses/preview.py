"""Preview: the metrics, predictions and gate of the version that a change would give, without the change."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.analyses.analysed_model import AnalysedModel, label_of, summarize
from core.analyses.hypothetical_examples import Change, HypotheticalRows, draw_without
from core.analyses.previewed_gate import Outcome
from core.kprior import Examples, State, what_if
from core.kprior.adaptation.network_survey import survey_change
from core.kprior.adaptation.schema import change_schema
from core.kprior.analyses.what_if import WhatIf, WhatIfOptions, replaces_splits
from core.kprior.curvature import is_wide
from core.kprior.data.random_samples import Draw
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.spec import is_network
from core.quality.clusters import number_repeated
from core.quality.evaluation import evaluate
from core.quality.label_rows import restrict, shared_labels
from core.quality.loss_limits import is_worse_without_bound
from core.quality.scored_rows import ScoredRows
from core.quality.standard_errors import BOOTSTRAPPED, compare, value_of
from core.tables.documents import certificate_json
from core.tables.models import Model

MAX_PREDICTIONS = 20
"""Predictions in the result: those that change most."""
RECENT_FRACTION, MIN_RECENT_ROWS = 0.2, 30
"""The newest part of the holdout, which is also evaluated by itself."""
REFINEMENT_ROUNDS = 5


def preview(model: AnalysedModel, change: Change, draw: Draw | None = None) -> tuple[dict[str, Any], int] | None:
    """The result of a preview, and the number of passes that it made; None if it needs passes and may make none.

    `draw` draws rows of the model's examples, which networks need.
    """
    start = time.perf_counter()
    if not change.tasks:  # only rows of the holdout, or names of classes
        found = None
        state, method, passes, certificate = model.state, "none", 0, None
    else:
        found = adapt_to(model, change, draw)
        if found is None:
            return None
        if is_worse(model, change, found):
            found = adapt_to(model, change, draw, retrain=True)
            if found is None:
                return None
        state, method = found.result.state, found.method
        passes, certificate = found.result.cost.data_passes, found.result.certificate
    seconds = time.perf_counter() - start
    before, after, outcome = evaluate_both(model, change, state)
    bounds = {} if certificate is None else certificate_json(certificate)  # without infinite ones
    result = {
        "before": before,
        "after": after,
        "difference": differences(outcome),
        "recent": recent(outcome),
        "bound": bounds.get("bound"),
        "relative_bound": bounds.get("relative"),
        "prediction_bound": bounds.get("prediction_bound"),
        "method": method,
        "passes": passes,
        "seconds": seconds,
        "gate": outcome.judge(),
        "predictions": moved_most(outcome),
        "removed": len(change.gone) + len(change.removed_holdout),
        "added": sum(len(rows) for rows in (change.added, change.added_holdout) if rows is not None),
        "unknown": list(change.unknown),
    }
    return result, passes


def is_worse(model: AnalysedModel, change: Change, found: WhatIf) -> bool:
    """Whether a job would retrain the model, because an adapted one that needs no bound is worse on the holdout."""
    parent = model.state
    if found.method != "kprior" or not parent.predictor.linear or must_certify(model, change):
        return False
    if change.spec.changes_rows:
        parent = change_schema(parent, model.memory, change.tasks)[0]
    rows = convert_holdout(change, holdout_after(model, change))
    before, after = (one.metrics for one in evaluate([parent, found.result.state], rows, model.options))
    return "loss" in before and is_worse_without_bound(before["loss"], after.get("loss", math.inf))


def must_certify(model: AnalysedModel, change: Change) -> bool:
    """Whether the version needs a bound."""
    certifies, removes = model.policy.certify, len(change.gone) > 0
    wanted = certifies in ("always", "pass") or (certifies == "removals" and removes)
    return wanted or is_wide(model.state.predictor) or change.erases


def adapt_to(model: AnalysedModel, change: Change, draw: Draw | None, retrain: bool = False) -> WhatIf | None:
    """The model after the change; None if passes are needed that may not be made."""
    network = is_network(change.spec.spec["architecture"]) or not model.state.predictor.linear
    retained, survey = None, None
    if model.in_force is not None:
        retained = HypotheticalRows(model.in_force, change.gone, change.spec, change.added)
    if network:
        if draw is None:
            return None
        drawn = draw_without(draw, change.gone, change.spec)
        holdout = [change.spec.convert(chunk) for chunk in model.holdout_rows]
        if not change.spec.changes_rows and not replaces_splits(model.state.spec, change.tasks):
            survey = survey_change(model.state, change.tasks, drawn, training=model.training, holdout=holdout)
    certifies = model.policy.certify
    options = WhatIfOptions(
        tolerance=model.policy.tolerance.relative_bound if must_certify(model, change) else None,
        forced=certifies == "pass",
        rounds=REFINEMENT_ROUNDS,
        training=model.training,
        policy=model.memory_policy,
        erasure=change.erases,
        retrain=retrain,
        keeps_units=keeps_units(model),
    )
    found = what_if(
        model.state,
        model.memory,
        change.tasks,
        retained=retained,
        options=options,
        holdout=[change.spec.convert(chunk) for chunk in model.holdout_rows] if certifies != "never" else (),
        draw=survey or (drawn if network else None),
        progress=lambda fraction, phrase: model.progress(0.1 + 0.7 * fraction, phrase),
    )
    return found if found.sufficient else None


def keeps_units(model: AnalysedModel) -> bool:
    """Whether a retrain would keep the units of the columns: not those of a column that was added without values."""
    encoder = model.state.predictor.encoder
    if not isinstance(encoder, TableEncoder) or not encoder.lacks_units:
        return True
    with model.database.read() as session:
        return session.get_one(Model, model.model_id).layout_position == 0


def evaluate_both(
    model: AnalysedModel, change: Change, state: State
) -> tuple[dict[str, float], dict[str, float], Outcome]:
    """The metrics of the model before and after a change, and its predictions for the holdout."""
    old = holdout_after(model, change)
    if not change.spec.changes_rows:
        new = old
        before, after = evaluate([model.state, state], old, model.options)
    else:
        new = convert_holdout(change, old)
        before, after = evaluate([model.state], old, model.options)[0], evaluate([state], new, model.options)[0]
    for evaluation, chunks in ((before, old), (after, new)):
        keys = [chunk.key.numpy() for chunk in chunks]
        if keys:
            evaluation.clusters = number_repeated(model.clusters(np.concatenate(keys), change.subjects))
    outcome = Outcome(model, change, state, before.rows, after.rows, old, new)
    return summarize(before.rows, before.metrics), summarize(after.rows, after.metrics), outcome


def holdout_after(model: AnalysedModel, change: Change) -> list[Examples]:
    """The rows of the holdout after a change, in the present columns and classes."""
    gone = torch.from_numpy(change.removed_holdout.copy())
    rows = model.holdout_rows
    if len(gone):
        rows = [chunk.take(~torch.isin(chunk.key, gone)) for chunk in rows]
    more = None if change.spec.changes_rows else change.added_holdout
    return [chunk for chunk in (*rows, *([] if more is None else [more])) if len(chunk)]


def convert_holdout(change: Change, holdout: Sequence[Examples]) -> list[Examples]:
    """The rows of the holdout after a change, in its own columns and classes."""
    if not change.spec.changes_rows:
        return list(holdout)
    more = change.added_holdout  # given in terms of the new columns, which the old model does not have
    return [*(change.spec.convert(chunk) for chunk in holdout), *([more] if more is not None and len(more) else [])]


def differences(outcome: Outcome) -> dict[str, float]:
    """Paired differences of all shared metrics, with the standard errors of most of them (suffix `_se`)."""
    found: dict[str, float] = {}
    if not outcome.comparable:
        return found
    before, after = align_labels(outcome.before, outcome.after)
    clusters = renumber(outcome.clusters(outcome.positions))
    for metric in before.metrics:
        if metric in after.metrics:
            if metric in BOOTSTRAPPED:  # which would take longer than all the rest
                difference, error = value_of(after, metric) - value_of(before, metric), math.nan
            else:
                pair = compare(before, after, metric, clusters)
                difference, error = pair.difference, pair.se
            found |= {metric: difference} if math.isfinite(difference) else {}
            found |= {f"{metric}_se": error} if math.isfinite(error) else {}
    return found


def align_labels(before: ScoredRows, after: ScoredRows) -> tuple[ScoredRows, ScoredRows]:
    """Both for the labels that they share, if they have labels."""
    if before.labels == after.labels:
        return before, after
    names = shared_labels([before, after])
    return restrict(before, names), restrict(after, names)


def renumber(clusters: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """The same clusters with the numbers 0, 1, 2, ..., without gaps."""
    return None if clusters is None else np.unique(clusters, return_inverse=True)[1]


def recent(outcome: Outcome) -> dict[str, Any] | None:
    """The loss before and after on the newest rows of the holdout; None if there are too few."""
    positions = outcome.positions
    count = int(RECENT_FRACTION * len(positions))
    if count < MIN_RECENT_ROWS or not outcome.comparable:
        return None
    newest = np.sort(np.argsort(positions, kind="stable")[-count:])
    clusters = renumber(outcome.clusters(positions[newest]))
    pair = compare(*align_labels(outcome.before.take(newest), outcome.after.take(newest)), "loss", clusters)
    return {
        "rows": count,
        "first_position": int(positions[newest].min()),
        "before": {"loss": pair.first},
        "after": {"loss": pair.second},
        "difference": {"loss": pair.difference, "loss_se": pair.se if math.isfinite(pair.se) else None},
    }


def moved_most(outcome: Outcome) -> list[dict[str, Any]]:
    """The holdout rows whose predictions change most: of class 1, of the true class, of one of the labels, or
    of the number."""
    if not outcome.comparable:
        return []
    before, after, positions = outcome.before, outcome.after, outcome.positions
    classes = before.target == "classes" and before.probability is not None and after.probability is not None
    one, other = (before.probability, after.probability) if classes else (before.score, after.score)
    if before.means is not None and after.means is not None:
        if before.labels != after.labels:
            return []
        rows, most = np.arange(len(before)), np.abs(after.means - before.means).argmax(1)
        one, other = before.means[rows, most], after.means[rows, most]
    assert one is not None
    assert other is not None
    order = np.argsort(-np.abs(other - one), kind="stable")[:MAX_PREDICTIONS]
    names = outcome.model.name_rows(positions[order].tolist())
    return [
        {
            "id": names.get(int(positions[i])),
            "y": label_of(outcome.model.spec, float(before.y[i])),
            "before": float(one[i]),
            "after": float(other[i]),
        }
        for i in order.tolist()
    ]
