"""Leave-one-out, cross-validation and tuning: metrics of predictions for rows that the model did not learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from scipy.special import erf
from torch import Tensor

from core.analyses.analysed_model import AnalysedModel, summarize
from core.analyses.fitted_features import has_fitted_features
from core.analyses.influence import group_rows, look_up
from core.analyses.label_errors import label_issues
from core.errors import Conflict, Invalid
from core.kprior import CrossValidation, cross_validate, leave_groups_out, leave_one_out
from core.kprior.analyses.cross_validation import FoldOf, fold_by_key
from core.kprior.data.label_sets import to_matrix
from core.kprior.model.spec import Spec
from core.ledger import bulk
from core.ledger.queries import batched
from core.quality.scored_rows import LOWER_IS_BETTER, Metric, ScoredRows
from core.quality.standard_errors import value_of

MAX_GROUPS = 10_000
"""Persons or sources that are left out one by one."""
SIMPLEST = {"regularizer.delta": max, "regularizer.columns": max, "architecture.degree": min}
"""Which of two values makes the simpler model; `suggested` is the simplest one within a standard error of the best."""


def report_leave_one_out(model: AnalysedModel, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Metrics of all training rows as predicted without them, and the rows with the most suspicious labels."""
    refuse_fitted_encoders(model)
    if request.get("by", "example") != "example":
        return report_leave_group_out(model, request)
    found = leave_one_out(model.state, model.examples)
    evaluation = model.score(found.without, found.y, found.sample_weight)
    evaluation.clusters = model.training_clusters(found.key.numpy())
    in_sample = model.score(found.outputs, found.y, found.sample_weight).metrics
    rows = evaluation.rows
    suspicion, issues = suspect(rows, model.state.predictor.family.mean(found.without))
    order = np.argsort(-suspicion, kind="stable")[: request["top"]]
    names = model.name_rows(found.key[order].tolist())
    mean = model.state.predictor.family.mean(found.without[torch.from_numpy(order.copy())])
    listed = [
        {
            "id": names.get(int(found.key[i])),
            "y": model.label_of(float(rows.y[i])),
            "loss": float(rows.loss[i]),
            "mean": model.describe_mean(p),
            "suspicion": float(suspicion[i]),
            "issue": None if issues is None else bool(issues[i]),
        }
        for i, p in zip(order.tolist(), mean.tolist(), strict=True)
    ]
    result = {
        "metrics": summarize(rows, evaluation.metrics),
        "in_sample": {name: in_sample[name] for name in ("loss",) if name in in_sample},
        "rows": listed,
        "issues": None if issues is None else int(issues.sum()),
        "error": found.error,
        "checked": found.checked,
        "estimate": not found.whole,
    }
    return result, found.passes


def report_leave_group_out(model: AnalysedModel, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Metrics of all training rows as predicted without their person or source, and the groups predicted worst."""
    by = request["by"]
    keys = np.concatenate([np.zeros(0, np.int64), *(chunk.key.numpy() for chunk in model.examples)])
    names, group = group_rows(model, by, keys)
    if not names:
        raise Conflict("analysis_refused", f"No training example has a {by}. Set `by` to `example`.")
    if len(names) > MAX_GROUPS or (len(names) == 1 and bool((group == 0).all())):
        message = f"The examples have {len(names)} groups; 2 to {MAX_GROUPS} are possible. Use a cross-validation."
        raise Conflict("analysis_refused", message)
    model.progress(0.2, f"Leaving out each {by}")
    found = leave_groups_out(model.state, model.examples, look_up(keys, group), len(names))
    evaluation, before = (model.score(f, found.y, found.sample_weight) for f in (found.without, found.outputs))
    evaluation.clusters = model.training_clusters(found.key.numpy())
    ours = group[group >= 0]
    count = np.bincount(ours, minlength=len(names))
    weight = np.bincount(ours, evaluation.rows.weight, len(names))
    loss, inside = (
        np.bincount(ours, one.rows.weight * one.rows.loss, len(names)) / weight for one in (evaluation, before)
    )
    listed = [
        {by: names[k], "examples": int(count[k]), "loss": float(loss[k]), "in_sample_loss": float(inside[k])}
        for k in np.argsort(-loss, kind="stable")[: request["top"]].tolist()
    ]
    result = {
        "metrics": summarize(evaluation.rows, evaluation.metrics),
        "in_sample": {name: before.metrics[name] for name in ("loss",) if name in before.metrics},
        "rows": listed,
        "by": by,
        "groups": len(names),
        "distance": found.error,
        "estimate": not found.whole,
    }
    return result, found.passes + 1


def suspect(rows: ScoredRows, mean: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """(n,) how suspicious each label is, from 0 to 1; and which labels cleanlab takes for errors, if it can tell."""
    if rows.means is not None:  # the label that is most surprising
        return np.abs(rows.means - to_matrix(rows.y, len(rows.labels))).max(1), None
    if rows.probability is not None:
        # the means of a ridge classifier can be below 0 or above 1
        return np.clip(1 - rows.probability, 0, 1), label_issues(rows, mean.double().cpu().numpy())
    residual = rows.score - rows.y if not rows.classifies else np.where(rows.truth == 1, -rows.score, rows.score)
    if rows.classifies:  # scores without probabilities
        return 1 / (1 + np.exp(-np.clip(residual, -500, 500))), None
    spread = 1.4826 * float(np.median(np.abs(residual - np.median(residual))))
    return erf(np.abs(residual) / max(spread, 1e-300) / math.sqrt(2)), None


def report_cross_validation(model: AnalysedModel, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Metrics of a cross-validation, of all rows and of each fold."""
    refuse_fitted_encoders(model)
    folds = request["folds"]
    found = validate(model, folds, request["by"], [model.state.spec])[0]
    evaluation = model.score(found.outputs, found.y, found.sample_weight, found.state)
    evaluation.clusters = model.training_clusters(found.key.numpy())
    result = {
        "metrics": summarize(evaluation.rows, evaluation.metrics),
        "folds": [{"fold": k + 1, **metrics_of(evaluation.rows.take((found.fold == k).numpy()))} for k in range(folds)],
        "by": request["by"],
        "distance": found.distance,
        "estimate": not found.whole,
    }
    return result, 1


def metrics_of(rows: ScoredRows) -> dict[str, float]:
    """All metrics of some rows, without standard errors."""
    values = {metric: value_of(rows, metric) for metric in rows.metrics}
    return {"rows": len(rows)} | {name: value for name, value in values.items() if math.isfinite(value)}


def validate(model: AnalysedModel, folds: int, by: str, specs: Sequence[Spec]) -> list[CrossValidation]:
    """Cross-validate variants of a model on the same folds."""
    fold_of = fold_by_subject(model, folds) if by == "subject" else fold_by_key(folds)
    try:
        return cross_validate(model.state, model.examples, fold_of, folds, specs, model.progress)
    except ValueError as error:
        raise Conflict("analysis_refused", str(error)) from error


def fold_by_subject(model: AnalysedModel, folds: int) -> FoldOf:
    """Folds in which all rows of a subject are together; rows without a subject are drawn by themselves."""
    drawn = fold_by_key(folds)

    def fold_of(key: Tensor) -> Tensor:
        found = drawn(key)
        subjects: dict[int, bytes] = {}
        with model.database.read() as session:
            for some in batched(key.tolist()):
                subjects.update(bulk.subjects_at(session, model.model_id, some))
        for i, position in enumerate(key.tolist()):
            if position in subjects:
                found[i] = int.from_bytes(subjects[position][-8:], "big") % folds
        return found

    return fold_of


def report_tuning(model: AnalysedModel, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Cross-validated metrics of several values of a parameter, the best value, and the simplest that is as good."""
    refuse_fitted_encoders(model)
    parameter, folds = request["parameter"], request["folds"]
    values = sorted(set(request["values"]))
    specs = [with_value(model.spec, parameter, value) for value in values]
    found = validate(model, folds, request["by"], specs)
    weighted = parameter.startswith("class_weight")
    table, clusters = [], model.training_clusters(found[0].key.numpy())
    for value, one in zip(values, found, strict=True):
        evaluation = model.score(one.outputs, one.y, one.sample_weight, one.state)
        evaluation.clusters = clusters
        rows = evaluation.rows
        per_fold = np.array([value_of(rows.take((one.fold == k).numpy()), "loss") for k in range(folds)])
        entry: dict[str, Any] = {"value": value, **summarize(rows, evaluation.metrics)}
        entry["fold_se"] = float(np.nanstd(per_fold, ddof=1) / math.sqrt(folds))
        table.append(entry)
    metric: Metric = request.get("metric") or ("balanced_accuracy" if weighted else "loss")
    if any(metric not in entry for entry in table):
        raise Conflict("metric_unavailable", f"The metric {metric} is not available for this model.")
    sign = 1 if metric in LOWER_IS_BETTER else -1
    best = min(table, key=lambda entry: sign * entry[metric])
    slack = best["fold_se"] if metric == "loss" else best.get(f"{metric}_se", 0.0)
    near = [entry["value"] for entry in table if sign * (entry[metric] - best[metric]) <= slack]
    simplest = SIMPLEST.get(".".join(parameter.split(".")[:2]))
    suggested = best["value"] if simplest is None else simplest(near)
    after = with_value(model.spec, parameter, suggested)
    part = parameter.split(".")[0]
    result = {
        "parameter": parameter,
        "metric": metric,
        "table": table,
        "best": best["value"],
        "suggested": suggested,
        # the weights of classes are set when a model is created
        "change": None if weighted else {part: after[part]},  # type: ignore[literal-required]
        "estimate": not found[0].whole,
        "distance": max(one.distance for one in found),
    }
    return result, 1


PARAMETERS = ("regularizer.delta", "regularizer.columns.NAME", "architecture.degree", "architecture.lengthscale")
PARAMETERS_OF_CLASSES = ("class_weight.CLASS",)


def with_value(spec: Spec, parameter: str, value: float) -> Spec:
    """The spec with another value of a parameter.

    >>> spec = {"regularizer": {"kind": "l2", "delta": 1.0}, "architecture": {"kind": "linear"}}
    >>> with_value(spec, "regularizer.delta", 5.0)["regularizer"]["delta"]
    5.0
    >>> with_value(spec, "regularizer.columns.age", 5.0)["regularizer"]["columns"]
    {'age': 5.0}
    """
    made: Any = deepcopy(spec)
    first, _, rest = parameter.partition(".")
    second, _, name = rest.partition(".")
    if parameter == "regularizer.delta" or (first == "architecture" and rest in ("degree", "lengthscale")):
        made[first][rest] = int(value) if rest == "degree" else value
    elif first == "regularizer" and second == "columns" and name:
        made[first]["columns"] = {**made[first].get("columns", {}), name: value}
    elif first == "class_weight" and rest:
        made["class_weight"] = {**made.get("class_weight", {}), rest: value}
    else:
        listed = ", ".join((*PARAMETERS, *PARAMETERS_OF_CLASSES))
        raise Invalid.at(("parameter",), "parameter_unknown", f"unknown parameter; known parameters: {listed}")
    return made  # type: ignore[no-any-return]


def refuse_fitted_encoders(model: AnalysedModel) -> None:
    """Raise Conflict if the features were fitted on the rows to be predicted: figures would be far too good."""
    if has_fitted_features(model.spec):
        message = (
            "The features of this model were fitted on its own examples, so predictions without an example would look"
            " far too good. Use the metrics on the holdout, or analyse with `preview` or `influence` instead."
        )
        raise Conflict("features_fitted", message)
