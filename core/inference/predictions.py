"""Predicted means in the callers' terms: what the service answers, and what a model loaded from MLflow gives."""

from __future__ import annotations

from typing import Any, TypedDict

from numpy.typing import NDArray

from ..kprior.model.posterior import Uncertainty
from ..kprior.model.spec import PredictorSpec, gives_scores

Prediction = TypedDict(
    "Prediction",
    {
        "mean": float,
        "score": float,
        "class": int | str,
        "probabilities": dict[str, float],
        "std": float | dict[str, float],
        "interval": tuple[float, float] | dict[str, tuple[float, float]],
    },
    total=False,
)
"""One answer: `mean` for yes/no, numbers and counts; `class` where there are classes, beside a `score` where the loss
is a squared hinge: above 0 for class 1, and no probability; `std` and `interval` if asked."""


def to_predictions(spec: PredictorSpec, mean: NDArray[Any], unsure: Uncertainty | None = None) -> list[Prediction]:
    """Predicted means (n, K) of a spec's target, and how sure they are.

    >>> import numpy as np
    >>> spec, f = {"target": {"kind": "binary"}}, np.array([[0.25]])
    >>> to_predictions(spec, f), to_predictions(spec | {"loss": {"kind": "squared_hinge"}}, f)
    ([{'mean': 0.25, 'class': 0}], [{'score': 0.25, 'class': 1}])
    """
    made, target = to_answers(spec, mean), spec["target"]
    if unsure is None:
        return made
    rows = zip(made, *(array.tolist() for array in unsure), strict=True)
    if target["kind"] != "classes":
        for one, std, low, high in rows:
            one["std"], one["interval"] = std[0], (low[0], high[0])
        return made
    names = [str(value) for value in target["values"]]
    for one, std, low, high in rows:
        one["std"] = dict(zip(names, std, strict=True))
        one["interval"] = dict(zip(names, zip(low, high, strict=True), strict=True))
    return made


def to_answers(spec: PredictorSpec, mean: NDArray[Any]) -> list[Prediction]:
    """The same, however sure they are."""
    target = spec["target"]
    if target["kind"] == "classes":
        values = target["values"]
        names = [str(value) for value in values]
        best = mean.argmax(1).tolist()
        return [
            {"class": values[i], "probabilities": dict(zip(names, p, strict=True))}
            for i, p in zip(best, mean.tolist(), strict=True)
        ]
    numbers = mean[:, 0].tolist()
    if gives_scores(spec):
        return [{"score": f, "class": int(f > 0)} for f in numbers]
    if target["kind"] == "binary":
        return [{"mean": p, "class": int(p > 0.5)} for p in numbers]
    return [{"mean": v} for v in numbers]
