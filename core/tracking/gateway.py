"""The gateway to an MLflow server: the only place that imports MLflow's client, and how errors of it are read."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import requests
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from core.tables.models import Model
from core.tracking.descriptions import timeline_name

MODEL_ID = "amend.model_id"
BUSY = ("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")
"""Error codes of MLflow while its own database is down or busy."""
UNAUTHENTICATED = "UNAUTHENTICATED"
MISSING = "RESOURCE_DOES_NOT_EXIST"


P = ParamSpec("P")
T = TypeVar("T")


class Gateway:
    """MLflow's client and its artifact stores. Every request first extends the mutex of publishers, by `hold`."""

    def __init__(self, url: str, hold: Callable[[], None]) -> None:
        self.url, self.hold = url, hold
        self.raw = MlflowClient(url, url)
        """For the rare request that must be made even if the mutex is lost."""

    @property
    def client(self) -> MlflowClient:
        """MLflow's client, for one request."""
        self.hold()
        return self.raw

    def list_files(self, folder: str, below: str | None = None) -> list[str]:
        """The paths of all files in a folder of an artifact store."""
        self.hold()
        found: list[str] = []
        for item in get_artifact_repository(folder, tracking_uri=self.url).list_artifacts(below):
            found += self.list_files(folder, item.path) if item.is_dir else [item.path]
        return found

    def delete_files(self, folder: str, path: str | None = None) -> None:
        """Delete a file of an artifact store, or everything in the folder."""
        self.hold()
        self.raw_delete_files(folder, path)

    def raw_delete_files(self, folder: str, path: str | None = None) -> None:
        get_artifact_repository(folder, tracking_uri=self.url).delete_artifacts(path)  # type: ignore[no-untyped-call]


def is_unavailable(error: BaseException | None) -> bool:
    """Whether MLflow could not respond, as opposed to having refused the request."""
    while error is not None:
        if isinstance(error, (requests.ConnectionError, requests.Timeout)):
            return True
        # with the right password, MLflow would accept the same request
        if isinstance(error, MlflowException) and error.error_code in (*BUSY, UNAUTHENTICATED):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_error(error: BaseException) -> str:
    """The reason why MLflow did not respond."""
    if isinstance(error, MlflowException) and error.error_code == UNAUTHENTICATED:
        return "MLflow rejected the password. Check AMEND_MLFLOW_PASSWORD."
    return "The connection to MLflow failed."


def none_if_missing(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The result of a call; None if MLflow has no such object."""
    try:
        return call(*args, **kwargs)
    except MlflowException as error:
        if error.error_code == MISSING:
            return None
        raise


def may_be_used_for(tags: dict[str, str], model_id: int) -> bool:
    """Whether an object in MLflow belongs to a model, or to no model of Amend, so that it may be used."""
    return tags.get(MODEL_ID) in (None, str(model_id))


def experiments(gateway: Gateway, model: Model) -> tuple[str, str]:
    """The ids of a model's experiment and of its timeline, which are created if necessary."""
    return experiment(gateway, model, model.name), experiment(gateway, model, timeline_name(model.name))


def experiment(gateway: Gateway, model: Model, name: str) -> str:
    """The id of an experiment, created if necessary. One left by an earlier model of this name is deleted."""
    found = gateway.client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        gateway.client.restore_experiment(found.experiment_id)
    if found is not None and not may_be_used_for(found.tags, model.id):
        delete_experiment(gateway, found)
        found = None
    if found is not None:
        return str(found.experiment_id)
    tags = {MODEL_ID: str(model.id), "amend.model": model.name, "mlflow.experimentKind": "custom_model_development"}
    return str(gateway.client.create_experiment(name, tags=tags))


def delete_experiment(gateway: Gateway, found: Experiment) -> None:
    """Delete an experiment, after renaming it: MLflow never frees the name of a deleted experiment."""
    suffix = f" (deleted {found.experiment_id})"
    if not found.name.endswith(suffix):
        gateway.client.rename_experiment(found.experiment_id, found.name + suffix)
    gateway.client.delete_experiment(found.experiment_id)


def delete_model(gateway: Gateway, name: str, model_id: int) -> None:
    """Delete all experiments and the registered model of a model, if there are any."""
    for found in gateway.client.search_experiments(filter_string=f"tags.`{MODEL_ID}` = '{model_id}'"):
        if found.tags.get("amend.model") == name:
            delete_experiment(gateway, found)
    registered = none_if_missing(gateway.client.get_registered_model, name)
    if registered is not None and registered.tags.get(MODEL_ID) == str(model_id):
        gateway.client.delete_registered_model(name)
