"""The MLflow server as the publisher sees it: a client that keeps the publisher's lease, and experiments by model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from core.tables.models import Model
from core.tracking.descriptions import timeline_name

MODEL_ID = "amend.model_id"
BUSY = ("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")
"""What MLflow answers while its own database is down or busy."""
STRANGER = "UNAUTHENTICATED"
MISSING = "RESOURCE_DOES_NOT_EXIST"


class Client:
    """MLflow's client, which calls `hold` before each request."""

    def __init__(self, url: str, hold: Callable[[], None]) -> None:
        self.client = MlflowClient(url, url)
        self.hold = hold

    def __getattr__(self, name: str) -> Any:
        self.hold()
        return getattr(self.client, name)


def is_unanswered(error: BaseException | None) -> bool:
    """Whether an exception says that MLflow could not answer, rather than that it would not."""
    while error is not None:
        if isinstance(error, (requests.ConnectionError, requests.Timeout)):
            return True
        # who refuses our password would take the same thing from us with the right one
        if isinstance(error, MlflowException) and error.error_code in (*BUSY, STRANGER):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_error(error: BaseException) -> str:
    """What is wrong with MLflow, which could not answer."""
    if isinstance(error, MlflowException) and error.error_code == STRANGER:
        return "MLflow refuses our password: see AMEND_MLFLOW_PASSWORD."
    return "The connection to MLflow broke."


def none_if_missing(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call finds, or None if there is no such thing."""
    try:
        return call(*arguments)
    except MlflowException as error:
        if error.error_code == MISSING:
            return None
        raise


def may_be_used_for(tags: dict[str, str], model_id: int) -> bool:
    """Whether something belongs to a model, or to nobody that we know: then it may be used."""
    return tags.get(MODEL_ID) in (None, str(model_id))


def experiments(client: Any, model: Model) -> tuple[str, str]:
    """The ids of a model's experiment and of its timeline."""
    return experiment(client, model, model.name), experiment(client, model, timeline_name(model.name))


def experiment(client: Any, model: Model, name: str) -> str:
    """The id of an experiment, created if need be. One that an earlier model of this name left is put away."""
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if found is not None and not may_be_used_for(found.tags, model.id):
        delete_experiment(client, found)
        found = None
    if found is not None:
        return str(found.experiment_id)
    tags = {MODEL_ID: str(model.id), "amend.model": model.name, "mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(name, tags=tags))


def delete_experiment(client: Any, found: Any) -> None:
    """Delete an experiment. It keeps its name for good, so it gets one that nobody else wants."""
    suffix = f" (deleted {found.experiment_id})"
    if not found.name.endswith(suffix):
        client.rename_experiment(found.experiment_id, found.name + suffix)
    client.delete_experiment(found.experiment_id)


def delete_model(client: Any, name: str, model_id: int) -> None:
    """Delete all that MLflow has of a model; nothing there is fine."""
    for found in client.search_experiments(filter_string=f"tags.`{MODEL_ID}` = '{model_id}'"):
        if found.tags.get("amend.model") == name:
            delete_experiment(client, found)
    registered = none_if_missing(client.get_registered_model, name)
    if registered is not None and registered.tags.get(MODEL_ID) == str(model_id):
        client.delete_registered_model(name)
