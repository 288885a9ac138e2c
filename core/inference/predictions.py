"""Predicted means in the callers' terms: what the service answers, and what a model loaded from MLflow gives."""

from __future__ import annotations

from typing import Any, TypedDict

from numpy.typing import NDArray

from ..kprior.model.spec import Target

Prediction = TypedDict(
    "Prediction", {"mean": float, "class": int | str, "probabilities": dict[str, float]}, total=False
)
"""One answer: `mean` for yes/no, numbers and counts; `class` where there are classes."""


def to_predictions(target: Target, mean: NDArray[Any]) -> list[Prediction]:
    """Predicted means (n, K) of a spec's target.

    >>> import numpy as np
    >>> to_predictions({"kind": "binary"}, np.array([[0.25]]))
    [{'mean': 0.25, 'class': 0}]
    """
    if target["kind"] == "classes":
        values = target["values"]
        names = [str(value) for value in values]
        best = mean.argmax(1).tolist()
        return [
            {"class": values[i], "probabilities": dict(zip(names, p, strict=True))}
            for i, p in zip(best, mean.tolist(), strict=True)
        ]
    numbers = mean[:, 0].tolist()
    if target["kind"] == "binary":
        return [{"mean": p, "class": int(p > 0.5)} for p in numbers]
    return [{"mean": v} for v in numbers]
