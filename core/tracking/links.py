"""Links to MLflow's pages about a model and its versions, without MLflow's own client. Ids that only MLflow knows are
looked up when somebody follows a link."""

from urllib.parse import quote

import httpx

from core.errors import NotFound, Unavailable
from core.tables.documents import MlflowPlace
from core.tracking.descriptions import timeline_name
from core.tracking.publisher import USER

TIMEOUT_SECONDS = 5.0
CLASSIC = "?workflowType=machine_learning"
"""Without it, MLflow's pages start with the features for language models."""


def model_page(pages: str, model: str) -> str:
    """The address of a registered model.

    >>> model_page("https://mlflow.example", "churn")
    'https://mlflow.example/#/models/churn?workflowType=machine_learning'
    """
    return f"{pages}/#/models/{quote(model, safe='')}{CLASSIC}"


def version_page(pages: str, model: str, place: MlflowPlace | None) -> str | None:
    """The address of a version in the registry, or of its run; None if MLflow has neither.

    >>> version_page("https://mlflow.example", "churn", {"run_id": "4fe1", "version": "7"})
    'https://mlflow.example/#/models/churn/versions/7?workflowType=machine_learning'
    >>> version_page("https://mlflow.example", "churn", {"run_id": "4fe1", "version": None})
    'https://mlflow.example/#/runs/4fe1?workflowType=machine_learning'
    """
    if not pages or not place:
        return None
    if place.get("version"):
        return f"{pages}/#/models/{quote(model, safe='')}/versions/{place['version']}{CLASSIC}"
    return f"{pages}/#/runs/{place['run_id']}{CLASSIC}" if place.get("run_id") else None


def find_timeline(url: str, password: str, model: str) -> str:
    """The path in MLflow of a model's timeline. Raises NotFound if it is not published yet."""
    try:
        answer = httpx.get(
            f"{url.rstrip('/')}/api/2.0/mlflow/experiments/get-by-name",
            params={"experiment_name": timeline_name(model)},
            auth=(USER, password) if password else None,
            timeout=TIMEOUT_SECONDS,
            verify=httpx.URL(url).scheme != "http",  # without TLS, preparing for it would take longer than the call
        )
        if answer.status_code == 404:
            raise NotFound("timeline_not_found", "This model is not published to MLflow yet; try again in a moment.")
        id = answer.raise_for_status().json()["experiment"]["experiment_id"]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise Unavailable("mlflow_unavailable", "MLflow does not respond.") from error
    return f"/#/experiments/{id}/runs{CLASSIC}&compareRunsMode=CHART"
