"""Influence: how the holdout loss, or some predictions, would change without each example, person or source."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import select
from torch import Tensor

from core.analyses.analysed_model import AnalysedModel
from core.errors import Conflict
from core.kprior import influence
from core.kprior.analyses.head import head_of
from core.kprior.analyses.influence import Influence, loss_gradient, prediction_gradients
from core.kprior.data.examples import concatenate
from core.ledger.queries import batched
from core.quality.standard_errors import compare
from core.tables.ledger import Example

MAX_NAMED_ROWS = 5
"""Examples that are named for a person."""


def report_influence(model: AnalysedModel, request: dict[str, Any], x: Tensor | None) -> tuple[dict[str, Any], int]:
    """The groups of largest effect: on the holdout loss or, if inputs are given, on their predictions."""
    by, top = request["by"], request["top"]
    keys = np.concatenate([np.zeros(0, np.int64), *(chunk.key.numpy() for chunk in model.examples)])
    names, group = group_rows(model, by, keys)
    if not names:
        raise Conflict("analysis_refused", f"No training example has a {by}. Set `by` to `example`.")
    if x is None and not model.holdout_rows:
        raise Conflict("analysis_refused", 'The model has no holdout. Name inputs instead: "on": {"inputs": [...]}.')
    gradient = loss_gradient(model.state, model.holdout_rows) if x is None else prediction_gradients(model.state, x)
    model.progress(0.2, "Removing each group of examples")
    found = influence(model.state, model.examples, look_up(keys, group), len(names), gradient, top=top)
    effects = holdout_effects(model, found) if x is None else prediction_effects(model, found, x)
    rows = []
    for i, number in enumerate(found.group.tolist()):
        row: dict[str, Any] = {"examples": int(found.size[i]), **effects[i]}
        members = keys[group == number][:MAX_NAMED_ROWS].tolist()
        ids = [id for _, id in sorted(model.name_rows(members).items())]
        if by == "example":
            row = {"id": ids[0] if ids else None, **row}
        elif by == "source":
            row = {"source": names[number], **row}
        else:
            row = {"subject": names[number], "ids": ids, **row}
        rows.append(row)
    rows.sort(key=lambda row: -abs(row["effect"]))
    return {"rows": rows, "by": by, "groups": len(names), "estimate": model.is_estimate}, found.passes + 1


def group_rows(model: AnalysedModel, by: str, keys: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """The names of all groups, and the number of each row's group; -1 for rows without one.

    Subjects are stored as keyed hashes, of which the beginning is shown.
    """
    if by == "example":
        return [""] * len(keys), np.arange(len(keys))
    column = Example.subject if by == "subject" else Example.source
    found: dict[int, Any] = {}
    with model.database.read() as session:
        for some in batched(keys.tolist()):
            query = select(Example.position, column).where(Example.model_id == model.model_id, column.is_not(None))
            found.update((p, value) for p, value in session.execute(query.where(Example.position.in_(some))))
    values = sorted(set(found.values()))
    number = {value: i for i, value in enumerate(values)}
    group = np.array([number[found[p]] if p in found else -1 for p in keys.tolist()], np.int64)
    return [value.hex()[:16] if isinstance(value, bytes) else value for value in values], group


def look_up(keys: NDArray[np.int64], group: NDArray[np.int64]) -> Callable[[Tensor], Tensor]:
    """The group of each row, from its key."""
    order = np.argsort(keys)

    def group_of(key: Tensor) -> Tensor:
        return torch.from_numpy(group[order[np.searchsorted(keys, key.numpy(), sorter=order)]])

    return group_of


def holdout_effects(model: AnalysedModel, found: Influence) -> list[dict[str, Any]]:
    """For each group, the change of the mean holdout loss without it, with its standard error."""
    head, rows = head_of(model.state), concatenate(model.holdout_rows)
    phi = head.features(rows.x)
    before = model.score(head.predict(phi), rows.y, rows.weight).rows
    clusters = model.clusters(model.holdout_positions)
    effects = []
    for w in found.w:
        after = model.score(head.predict(phi, w), rows.y, rows.weight).rows
        pair = compare(before, after, "loss", clusters)
        effects.append({"effect": pair.difference, "effect_se": pair.se if math.isfinite(pair.se) else None})
    return effects


def prediction_effects(model: AnalysedModel, found: Influence, x: Tensor) -> list[dict[str, Any]]:
    """For each group, the change of the prediction for every input; `effect` is the largest."""
    head = head_of(model.state)
    phi = head.features(x)
    f = head.predict(phi)
    chosen, rows = f.argmax(1), torch.arange(len(f))
    before = head.family.mean(f)[rows, chosen]
    effects = []
    for w in found.w:
        change = head.family.mean(head.predict(phi, w))[rows, chosen] - before
        effects.append({"effect": float(change[change.abs().argmax()]), "effects": change.tolist()})
    return effects
