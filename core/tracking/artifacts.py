"""Finding and deleting the weights of versions in MLflow. What MLflow deletes by itself, it only hides.

Charts are deleted with the weights because they count single rows of the holdout. Runs and metrics are kept: they do
not reveal any row.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from mlflow.entities import Experiment, Run, ViewType

from core.errors import Conflict
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.gateway import MODEL_ID, Gateway, is_unavailable, none_if_missing
from core.tracking.lineage import Lineage
from core.tracking.runs import CHARTS_FOLDER, is_run_of

SUFFIX = ".safetensors"
"""Suffix of all files that contain weights."""


def delete(gateway: Gateway, model: Model, number: int) -> Counter[str]:
    """Delete the weights of a version and verify that they are gone; returns how much there was, by kind."""
    gone = Counter[str]()
    for experiment, run in list(runs(gateway, model, f"= '{number}'")):
        gone.update(delete_of_run(gateway, model, experiment, run))
    return gone


def delete_lost(gateway: Gateway, lineage: Lineage) -> Counter[str]:
    """Delete the weights of all runs whose versions the database does not contain, as `delete` does."""
    gone, known = Counter[str](), {version.job_id: version for version in lineage.versions}
    for experiment, run in list(runs(gateway, lineage.model, "LIKE '%'")):
        version = known.get(run.data.tags.get("amend.job"))
        if version is None or not is_run_of(run, version):
            gone.update(delete_of_run(gateway, lineage.model, experiment, run))
    return gone


def delete_of_run(gateway: Gateway, model: Model, experiment: Experiment, run: Run) -> Counter[str]:
    look = partial(Weights, gateway, model, experiment, run)
    found = look()
    gone = found.count()
    found.unregister()
    found.delete_files()
    # verified before the logged models, which lead to the files, are deleted
    left = Counter(files=look().count()["files"])
    if not left.total():
        found.delete_models()
        left = look().count()
    if left.total():
        kept = ", ".join(f"{many} {what}" for what, many in left.items() if many)
        number = run.data.tags.get("amend.version")
        raise Conflict("mlflow_not_purged", f"MLflow still has {kept} of version {number} of {model.name}.")
    return gone


def delete_noted(gateway: Gateway, model: Model, version: Version) -> Counter[str]:
    """Delete the files in the recorded folders of a version and verify that they are gone.

    This does not rely on MLflow's database, which may have been lost.
    """
    gone, folders = Counter(files=0), folders_of(version)
    for last in (False, True):
        for folder, goes in folders.items():
            try:
                found = [path for path in gateway.list_files(folder) if goes(path)]
                for path in found if not last else ():
                    gateway.delete_files(folder, path)
            except Exception as error:
                if is_unavailable(error):
                    raise
                message = f"Cannot list {folder}, which contained version {version.number} of {model.name}."
                raise Conflict("mlflow_not_purged", message) from error
            if found and last:
                message = f"MLflow's store still has {len(found)} files of version {version.number} of {model.name}."
                raise Conflict("mlflow_not_purged", message)
            gone["files"] += 0 if last else len(found)
    return gone


def folders_of(version: Version) -> dict[str, Callable[[str], bool]]:
    """The folders that may contain files of a version, each with a condition on the files to delete."""
    if not version.mlflow_folder:
        return {}
    found: dict[str, Callable[[str], bool]] = {version.mlflow_folder: lambda path: True}
    root, apart, _ = version.mlflow_folder.rpartition("/models/")
    if apart and (run_id := (version.mlflow or {}).get("run_id")):
        found[f"{root}/{run_id}/artifacts"] = is_private_file
    return found


def is_private_file(path: str) -> bool:
    """Whether a file of a run must be deleted with its version: weights that somebody put there, and charts."""
    return path.endswith(SUFFIX) or path.startswith(f"{CHARTS_FOLDER}/")


def runs(gateway: Gateway, model: Model, number: str) -> Iterator[tuple[Experiment, Run]]:
    """The runs of versions with their experiments, including deleted runs, which MLflow keeps."""
    tagged, of_version = f"tags.`{MODEL_ID}` = '{model.id}'", f"tags.`amend.version` {number}"
    for experiment in gateway.client.search_experiments(ViewType.ALL, filter_string=tagged):
        if experiment.tags.get("amend.model") == model.name:
            token = None
            while True:
                found = gateway.client.search_runs(
                    [experiment.experiment_id], of_version, ViewType.ALL, page_token=token
                )
                for run in found:
                    yield experiment, run
                token = found.token
                if not token:
                    break


def delete_all(gateway: Gateway, name: str, model_id: int) -> None:
    """Delete the weights of all versions of a deleted model."""
    tagged = f"tags.`{MODEL_ID}` = '{model_id}'"
    for experiment in gateway.client.search_experiments(ViewType.ALL, filter_string=tagged):
        if experiment.tags.get("amend.model") != name:
            continue
        while found := gateway.client.search_logged_models([experiment.experiment_id], max_results=100):
            for model in found:
                gateway.delete_files(model.artifact_location)
                none_if_missing(gateway.client.delete_logged_model, model.model_id)


class Weights:
    """All copies in MLflow of the weights that a run created."""

    def __init__(self, gateway: Gateway, model: Model, experiment: Experiment, run: Run) -> None:
        self.gateway, run_id = gateway, run.info.run_id
        self.versions = gateway.client.search_model_versions(f"name = '{model.name}' and run_id = '{run_id}'")
        self.models = gateway.client.search_logged_models([experiment.experiment_id], f"source_run_id = '{run_id}'")
        # if somebody deleted the logged model by hand, its files are still in the usual place
        outputs = run.outputs.model_outputs if run.outputs else []
        usual = {f"{experiment.artifact_location}/models/{output.model_id}/artifacts" for output in outputs}
        folders = usual | {model.artifact_location for model in self.models}
        self.folders = {folder: gateway.list_files(folder) for folder in folders}
        self.run_folder = run.info.artifact_uri
        self.strays = [path for path in gateway.list_files(self.run_folder) if is_private_file(path)]

    def count(self) -> Counter[str]:
        files = len(self.strays) + sum(map(len, self.folders.values()))
        return Counter(versions=len(self.versions), models=len(self.models), files=files)

    def unregister(self) -> None:
        for version in self.versions:
            none_if_missing(self.gateway.client.delete_model_version, version.name, version.version)

    def delete_files(self) -> None:
        for folder in self.folders:
            # even if it seems empty: MLflow does not list a file whose upload was interrupted
            self.gateway.delete_files(folder)
        for path in self.strays:
            self.gateway.delete_files(self.run_folder, path)

    def delete_models(self) -> None:
        for model in self.models:
            none_if_missing(self.gateway.client.delete_logged_model, model.model_id)
