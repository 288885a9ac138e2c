"""Predictions in terms of the target, as the service and models loaded from MLflow return them."""

from typing import Any, TypedDict

from numpy.typing import NDArray

from ..kprior.model.spec import PredictorSpec, gives_scores
from ..kprior.model.uncertainty import Uncertainty

Prediction = TypedDict(
    "Prediction",
    {
        "mean": float,
        "score": float,
        "class": int | str,
        "labels": list[int | str],
        "probabilities": dict[str, float],
        "std": float | dict[str, float],
        "interval": tuple[float, float] | dict[str, tuple[float, float]],
        "contributions": dict[str, float],
    },
    total=False,
)
"""A prediction: `mean` for binary targets, numbers and counts; `class` for binary targets and classes; `labels` for
targets of several labels; `score` instead of a probability if the loss is the squared hinge (above 0 for class 1); on
request `std`, `interval` and `contributions`."""


def to_predictions(
    spec: PredictorSpec, mean: NDArray[Any], uncertainty: Uncertainty | None = None, threshold: float = 0.5
) -> list[Prediction]:
    """Convert predicted means (n, K), and their uncertainty, to predictions.

    A binary model predicts class 1 if its probability is above the threshold; of several labels, each is predicted by
    itself.

    >>> import numpy as np
    >>> spec, f = {"target": {"kind": "binary"}}, np.array([[0.25]])
    >>> to_predictions(spec, f), to_predictions(spec | {"loss": {"kind": "squared_hinge"}}, f)
    ([{'mean': 0.25, 'class': 0}], [{'score': 0.25, 'class': 1}])
    """
    predictions, target = without_uncertainty(spec, mean, threshold), spec["target"]
    if uncertainty is None:
        return predictions
    rows = zip(predictions, *(array.tolist() for array in uncertainty), strict=True)
    if target["kind"] != "classes" and target["kind"] != "labels":
        for prediction, std, low, high in rows:
            prediction["std"], prediction["interval"] = std[0], (low[0], high[0])
        return predictions
    names = [str(value) for value in target["values"]]
    for prediction, std, low, high in rows:
        prediction["std"] = dict(zip(names, std, strict=True))
        prediction["interval"] = dict(zip(names, zip(low, high, strict=True), strict=True))
    return predictions


def without_uncertainty(spec: PredictorSpec, mean: NDArray[Any], threshold: float) -> list[Prediction]:
    target = spec["target"]
    if target["kind"] == "classes":
        values = target["values"]
        names = [str(value) for value in values]
        best = mean.argmax(1).tolist()
        return [
            {"class": values[i], "probabilities": dict(zip(names, p, strict=True))}
            for i, p in zip(best, mean.tolist(), strict=True)
        ]
    if target["kind"] == "labels":
        values = target["values"]
        names = [str(value) for value in values]
        return [
            {
                "labels": [value for value, p in zip(values, row, strict=True) if p > threshold],
                "probabilities": dict(zip(names, row, strict=True)),
            }
            for row in mean.tolist()
        ]
    numbers = mean[:, 0].tolist()
    if gives_scores(spec):
        return [{"score": f, "class": int(f > 0)} for f in numbers]
    if target["kind"] == "binary":
        return [{"mean": p, "class": int(p > threshold)} for p in numbers]
    return [{"mean": v} for v in numbers]
