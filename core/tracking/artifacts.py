"""Where MLflow has the weights of versions, and deleting them there: what MLflow deletes itself, it only hides.

Pictures go with them: they count single rows of the holdout. Runs and metrics stay: no row can be told from these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from mlflow.entities import ViewType
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from core.errors import Conflict
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.lineage import Lineage
from core.tracking.mlflow_client import MODEL_ID, is_unanswered, none_if_missing
from core.tracking.runs import CHARTS_FOLDER

SUFFIX = ".safetensors"
"""How the names of all files with weights end."""


def delete(client: Any, url: str, model: Model, number: int) -> Counter[str]:
    """Delete the weights of a version, and look whether they are gone; by kind, how much there was."""
    gone = Counter[str]()
    for experiment, run in list(runs(client, model, f"= '{number}'")):
        gone.update(delete_of_run(client, url, model, experiment, run))
    return gone


def delete_lost(client: Any, url: str, lineage: Lineage) -> Counter[str]:
    """The same for all runs whose versions the database does not know."""
    gone, known = Counter[str](), {version.job_id for version in lineage.versions}
    for experiment, run in list(runs(client, lineage.model, "LIKE '%'")):
        if run.data.tags.get("amend.job") not in known:
            gone.update(delete_of_run(client, url, lineage.model, experiment, run))
    return gone


def delete_of_run(client: Any, url: str, model: Model, experiment: Any, run: Any) -> Counter[str]:
    look = partial(Weights, client, url, model, experiment, run)
    found = look()
    gone = found.count()
    found.unregister()
    found.delete_files()
    # while their MLflow models, which lead to the files, are still there
    left = Counter(files=look().count()["files"])
    if not left.total():
        found.delete_models()
        left = look().count()
    if left.total():
        kept = ", ".join(f"{many} {what}" for what, many in left.items() if many)
        number = run.data.tags.get("amend.version")
        raise Conflict("mlflow_not_purged", f"MLflow still has {kept} of version {number} of {model.name}.")
    return gone


def delete_noted(client: Any, url: str, model: Model, version: Version) -> Counter[str]:
    """Delete what lies in the folders of a version, and look whether it is gone, whatever MLflow knows of them.

    MLflow may have lost its database, and then says that there is nothing.
    """
    gone, folders = Counter(files=0), folders_of(version)
    for last in (False, True):
        for folder, goes in folders.items():
            client.hold()
            try:
                repository: Any = get_artifact_repository(folder, tracking_uri=url)
                found = [path for path in files_in(repository) if goes(path)]
                for path in found if not last else ():
                    repository.delete_artifacts(path)
            except Exception as error:
                if is_unanswered(error):
                    raise
                message = f"{folder}, where version {version.number} of {model.name} was, cannot be looked at."
                raise Conflict("mlflow_not_purged", message) from error
            if found and last:
                message = f"MLflow's store still has {len(found)} files of version {version.number} of {model.name}."
                raise Conflict("mlflow_not_purged", message)
            gone["files"] += 0 if last else len(found)
    return gone


def folders_of(version: Version) -> dict[str, Callable[[str], bool]]:
    """The folders that may hold files of a version, and which of the files there are to go."""
    if not version.mlflow_folder:
        return {}
    found: dict[str, Callable[[str], bool]] = {version.mlflow_folder: lambda path: True}
    root, apart, _ = version.mlflow_folder.rpartition("/models/")
    if apart and (run_id := (version.mlflow or {}).get("run_id")):
        found[f"{root}/{run_id}/artifacts"] = is_private_file
    return found


def is_private_file(path: str) -> bool:
    """Whether a file of a run may not outlive its version: weights that somebody put there, and pictures."""
    return path.endswith(SUFFIX) or path.startswith(f"{CHARTS_FOLDER}/")


def files_in(repository: Any, path: str | None = None) -> list[str]:
    """The paths of all files of a folder."""
    found: list[str] = []
    for item in repository.list_artifacts(path):
        found += files_in(repository, item.path) if item.is_dir else [item.path]
    return found


def runs(client: Any, model: Model, number: str) -> Iterator[tuple[Any, Any]]:
    """The runs of versions with their experiments; also those that somebody deleted, for MLflow keeps them."""
    tagged, of_version = f"tags.`{MODEL_ID}` = '{model.id}'", f"tags.`amend.version` {number}"
    for experiment in client.search_experiments(ViewType.ALL, filter_string=tagged):
        if experiment.tags.get("amend.model") == model.name:
            token = None
            while True:
                found = client.search_runs([experiment.experiment_id], of_version, ViewType.ALL, page_token=token)
                for run in found:
                    yield experiment, run
                token = found.token
                if not token:
                    break


def delete_all(client: Any, url: str, name: str, model_id: int) -> None:
    """Delete the weights of all versions of a model that is deleted itself."""
    tagged = f"tags.`{MODEL_ID}` = '{model_id}'"
    for experiment in client.search_experiments(ViewType.ALL, filter_string=tagged):
        if experiment.tags.get("amend.model") != name:
            continue
        while found := client.search_logged_models([experiment.experiment_id], max_results=100):
            for model in found:
                client.hold()
                get_artifact_repository(model.artifact_location, tracking_uri=url).delete_artifacts()  # type: ignore[no-untyped-call]
                none_if_missing(client.delete_logged_model, model.model_id)


class Weights:
    """All that MLflow has of the weights that came out of a run."""

    def __init__(self, client: Any, url: str, model: Model, experiment: Any, run: Any) -> None:
        self.client, self.url, run_id = client, url, run.info.run_id
        self.versions = client.search_model_versions(f"name = '{model.name}' and run_id = '{run_id}'")
        self.models = client.search_logged_models([experiment.experiment_id], f"source_run_id = '{run_id}'")
        # the files of a model that somebody deleted by hand are still there, where MLflow puts those of all models
        outputs = run.outputs.model_outputs if run.outputs else []
        usual = {f"{experiment.artifact_location}/models/{output.model_id}/artifacts" for output in outputs}
        self.folders = {folder: self.files(folder) for folder in usual | {m.artifact_location for m in self.models}}
        self.run_folder = run.info.artifact_uri
        self.strays = [path for path in self.files(self.run_folder) if is_private_file(path)]

    def count(self) -> Counter[str]:
        files = len(self.strays) + sum(map(len, self.folders.values()))
        return Counter(versions=len(self.versions), models=len(self.models), files=files)

    def unregister(self) -> None:
        for version in self.versions:
            none_if_missing(self.client.delete_model_version, version.name, version.version)

    def delete_files(self) -> None:
        for folder in self.folders:
            # even if it seems empty: MLflow does not list a file whose upload was cut off
            self.repository(folder).delete_artifacts()
        for path in self.strays:
            self.repository(self.run_folder).delete_artifacts(path)

    def delete_models(self) -> None:
        for model in self.models:
            none_if_missing(self.client.delete_logged_model, model.model_id)

    def files(self, folder: str) -> list[str]:
        """The paths of all files below a folder."""
        return files_in(self.repository(folder))

    def repository(self, folder: str) -> Any:
        """The way to the files below a folder, for one request."""
        self.client.hold()
        return get_artifact_repository(folder, tracking_uri=self.url)
