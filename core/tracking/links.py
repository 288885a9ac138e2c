"""Where MLflow's pages show a model. Asked for when somebody follows a link; MLflow's own client is not needed."""

from __future__ import annotations

import httpx

from core.errors import NotFound, Unavailable
from core.tracking.descriptions import timeline_name
from core.tracking.publisher import USER

SECONDS = 5.0


def find_timeline(url: str, password: str, model: str) -> str:
    """The address, within MLflow, of the chart of a model over its ledger; NotFound if MLflow has none yet."""
    try:
        answer = httpx.get(
            f"{url.rstrip('/')}/api/2.0/mlflow/experiments/get-by-name",
            params={"experiment_name": timeline_name(model)},
            auth=(USER, password) if password else None,
            timeout=SECONDS,
            verify=httpx.URL(url).scheme != "http",  # preparing for TLS takes longer than the call
        )
        if answer.status_code == 404:
            raise NotFound("timeline_not_found", "MLflow has not been told of this model yet; try again in a moment.")
        id = answer.raise_for_status().json()["experiment"]["experiment_id"]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise Unavailable("mlflow_unavailable", "MLflow does not answer.") from error
    return f"/#/experiments/{id}/runs?workflowType=machine_learning&compareRunsMode=CHART"
