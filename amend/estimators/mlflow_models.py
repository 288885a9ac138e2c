"""Fitted models in MLflow's registry: the client loads them, and the server never unpickles anything."""

from __future__ import annotations

import importlib
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.example_batches import require

SCHEMES = ("models:/", "runs:/", "mlflow-artifacts:/")
FLAVORS = ("sklearn", "lightgbm", "xgboost", "pytorch")
"""Flavors of MLflow whose models can be imported, in the order of preference."""


def is_uri(estimator: Any) -> bool:
    """Whether this is the address of a model in MLflow, such as ``models:/churn/3``."""
    return isinstance(estimator, str) and estimator.startswith(SCHEMES)


def load(uri: str) -> Any:
    """The fitted model at an address. Raises EstimatorUnsupported if it is of another kind."""
    require("mlflow")
    models = importlib.import_module("mlflow.models")
    flavors = models.get_model_info(uri).flavors
    flavor = next((name for name in FLAVORS if name in flavors), None)
    if flavor is None:
        found = ", ".join(sorted(flavors)) or "none"
        raise EstimatorUnsupported(
            f"The model {uri} has no flavor that can be imported (found: {found}). Supported: {', '.join(FLAVORS)}."
        )
    return importlib.import_module(f"mlflow.{flavor}").load_model(uri)
