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
from core.kprior.model.spec import gives_scores
from core.quality.scored_rows import MetricOptions, ScoredRows, concatenate

DEFAULTS = MetricOptions()


def score(
    states: Sequence[State], data: Data, options: MetricOptions = DEFAULTS
) -> tuple[NDArray[np.int64], list[ScoredRows]]:
    """Predict the same rows with several versions.

    Returns
    -------
    (n,) ledger positions of the rows, and what each version predicted for them
    """
    chunks = [chunk for chunk in data if len(chunk)]
    positions = [chunk.key.numpy() for chunk in chunks]
    rows = [
        concatenate([score_chunk(state, chunk, options) for chunk in chunks] or [no_rows(state)]) for state in states
    ]
    return np.concatenate(positions) if positions else np.zeros(0, np.int64), rows


def score_chunk(state: State, chunk: Examples, options: MetricOptions = DEFAULTS) -> ScoredRows:
    """What a version predicts for a chunk of rows."""
    f, mean = predict(state, chunk.x)
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
    truth = (y.argmax(1) if target == "classes" else y[:, 0]).double().cpu().numpy()
    values = mean.double().cpu().numpy()
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
    return ScoredRows(state.spec["target"]["kind"], nothing, nothing, nothing.astype(np.int64), nothing, nothing)


def score_means(
    state: State, rows: ScoredRows, mean: NDArray[np.float64], options: MetricOptions = DEFAULTS
) -> ScoredRows:
    """The same rows with predictions (n, K) that another version made for them; `state` defines the loss."""
    family = state.predictor.family
    means, y = torch.from_numpy(mean.copy()), torch.from_numpy(rows.y)
    truth = torch.nn.functional.one_hot(y.long(), family.outputs).double() if rows.target == "classes" else y[:, None]
    match family.name:
        case "bernoulli":
            f = torch.logit(means)
        case "categorical" | "poisson":
            f = means.log()
        case _:  # the mean is the output
            f = means
    return score_outputs(state, f, means, truth, torch.from_numpy(rows.weight), options)


def overlay(rows: ScoredRows, which: NDArray[np.int64], others: ScoredRows) -> ScoredRows:
    """The rows, with other predictions at the indices `which`."""
    changed: dict[str, Any] = {}
    for name in ("loss", "score", "predicted", "probability", "square_sum"):
        column, other = getattr(rows, name), getattr(others, name)
        changed[name] = None if column is None or other is None else column.copy()
        if changed[name] is not None:
            changed[name][which] = other
    return replace(rows, **changed)
