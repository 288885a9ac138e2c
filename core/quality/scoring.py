"""From model states and examples to scored rows: jobs score the champion, the frozen and the new version here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kprior import Data, Examples, State
from core.kprior.data.label_sets import to_matrix
from core.kprior.model.spec import gives_scores, values_of
from core.kprior.model.target_scale import to_fitted
from core.quality.label_rows import score_labels
from core.quality.scored_rows import SMALLEST_PROBABILITY, MetricOptions, ScoredRows, concatenate

DEFAULTS = MetricOptions()
IMPOSSIBLE = 1e4
"""The output of a class that cannot be, below all others: its probability is zero, and its loss is finite."""


def score(
    states: Sequence[State], data: Data, options: MetricOptions = DEFAULTS, classes: Tensor | None = None
) -> tuple[NDArray[np.int64], list[ScoredRows]]:
    """Predict the same rows with several versions; as one of some `classes` only, if a mask (K,) is given.

    Returns
    -------
    (n,) ledger positions of the rows, and what each version predicted for them
    """
    chunks = [chunk for chunk in data if len(chunk)]
    positions = [chunk.key.numpy() for chunk in chunks]
    rows = [
        concatenate([score_chunk(state, chunk, options, classes) for chunk in chunks] or [no_rows(state)])
        for state in states
    ]
    return np.concatenate(positions) if positions else np.zeros(0, np.int64), rows


def score_chunk(
    state: State, chunk: Examples, options: MetricOptions = DEFAULTS, classes: Tensor | None = None
) -> ScoredRows:
    """What a version predicts for a chunk of rows."""
    f, mean = predict(state, chunk.x)
    if classes is not None and state.predictor.family.name == "categorical":
        f = torch.where(classes.to(f.device), f, f.min() - IMPOSSIBLE)
        mean = state.predictor.family.mean(f)
    return score_outputs(state, f, mean, chunk.y, weights_of(chunk), options)


def predict(state: State, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs f and means h(f)."""
    with torch.inference_mode():
        f = state.predictor.outputs(state.w, x)
        return f, state.predictor.family.mean(f)


def weights_of(chunk: Examples) -> Tensor:
    """(n,) the weight of each row."""
    return torch.ones(len(chunk), dtype=torch.float64) if chunk.weight is None else chunk.weight.double().cpu()


def score_outputs(
    state: State, f: Tensor, mean: Tensor, y: Tensor, weight: Tensor, options: MetricOptions = DEFAULTS
) -> ScoredRows:
    """The scored rows of outputs f and means h(f)."""
    target = state.spec["target"]["kind"]
    loss = row_loss(state, f, y.to(f))
    values = mean.double().cpu().numpy()
    if target == "labels":
        names = list(map(str, values_of(state.spec["target"])))
        return score_labels(names, loss, values, y.double().cpu().numpy(), weight.numpy(), options)
    truth = (y.argmax(1) if target == "classes" else y[:, 0]).double().cpu().numpy()
    if gives_scores(state.spec):  # a squared hinge separates its classes at 0 and knows no probabilities
        signs = (values[:, 0] > 0).astype(np.int64)
        return ScoredRows(target, loss, values[:, 0], signs, truth, weight.numpy(), precision=options.precision)
    return ScoredRows.of(target, loss, values, truth, weight.numpy(), options)


def row_loss(state: State, f: Tensor, y: Tensor) -> NDArray[np.float64]:
    """(n,) losses of outputs f; for counts, less the smallest loss that the count can have."""
    loss = state.predictor.family.loss(y, f).double()
    if state.spec["target"]["kind"] == "count":
        loss = loss - (y - torch.xlogy(y, y)).double().sum(1)
    values: NDArray[np.float64] = loss.cpu().numpy()
    return values


def no_rows(state: State) -> ScoredRows:
    nothing = np.zeros(0)
    if state.spec["target"]["kind"] == "labels":
        names = list(map(str, values_of(state.spec["target"])))
        none = np.zeros((0, len(names)))
        return score_labels(names, nothing, none, none, nothing, DEFAULTS)
    return ScoredRows(state.spec["target"]["kind"], nothing, nothing, nothing.astype(np.int64), nothing, nothing)


def score_means(
    state: State, rows: ScoredRows, mean: NDArray[np.float64], options: MetricOptions = DEFAULTS
) -> ScoredRows:
    """The same rows with predictions (n, K) that another version made for them; `state` defines the loss."""
    family = state.predictor.family
    means, y = torch.from_numpy(mean.copy()), torch.from_numpy(rows.y)
    truth = torch.nn.functional.one_hot(y.long(), family.outputs).double() if rows.target == "classes" else y[:, None]
    if rows.target == "labels":
        truth = torch.from_numpy(to_matrix(rows.y, family.outputs))
    match family.name:
        case "bernoulli":  # a probability of 1 would have an infinite output, whose loss is not a number
            f = torch.logit(means, SMALLEST_PROBABILITY)
        case "categorical" | "poisson":
            f = means.clamp(min=SMALLEST_PROBABILITY).log()
        case _:  # the mean is the output
            means = torch.from_numpy(to_fitted(state.spec["target"], mean))
            f = means
    return score_outputs(state, f, means, truth, torch.from_numpy(rows.weight), options)


def overlay(rows: ScoredRows, which: NDArray[np.int64], others: ScoredRows) -> ScoredRows:
    """The rows, with other predictions at the indices `which`."""
    changed: dict[str, Any] = {}
    for name in ("loss", "score", "predicted", "probability", "square_sum", "means"):
        column, other = getattr(rows, name), getattr(others, name)
        changed[name] = None if column is None or other is None else column.copy()
        if changed[name] is not None:
            changed[name][which] = other
    return replace(rows, **changed)
