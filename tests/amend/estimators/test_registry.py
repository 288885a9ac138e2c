"""Models from MLflow's registry are loaded by the client."""

from __future__ import annotations

from pathlib import Path

import mlflow
import numpy as np
import pytest

from amend import Client, EstimatorUnsupported
from amend.estimators import mlflow_models
from tests.amend.estimators.rows import adopted, imported, predicted
from tests.amend.estimators.shop import COLUMNS, COLUMNWISE, orders


def test_a_registered_pipeline_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = orders(150).loc[:, [*COLUMNS, "returned"]].rename(columns={"returned": "y"})
    pipeline = COLUMNWISE["imputer, scaler, one-hot"]().fit(rows[COLUMNS], rows.y)
    monkeypatch.setattr(mlflow.tracking.fluent, "_active_experiment_id", None)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with mlflow.start_run():
            mlflow.sklearn.log_model(
                pipeline, name="model", registered_model_name="orders", serialization_format="cloudpickle"
            )
        loaded = mlflow_models.load("models:/orders/1")
    finally:
        mlflow.set_tracking_uri(None)
    made = imported(loaded, rows)
    found = predicted(adopted(made, rows), made, rows)[:, 0]
    np.testing.assert_allclose(found, pipeline.predict_proba(rows[COLUMNS])[:, 1], atol=1e-6)


def test_other_texts_and_other_kinds_of_models_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(EstimatorUnsupported, match="not an address of MLflow"),
        Client("http://localhost:1", "amend_1_secret") as client,
    ):
        client.import_model("orders", "orders.pkl", orders(3))
