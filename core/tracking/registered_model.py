"""The registered model: versions that can be loaded, and the aliases `champion`, `challenger` and `reference`."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from mlflow.models import Model as Described

from core.tables.versions import Version
from core.tracking import descriptions
from core.tracking.gateway import MODEL_ID, Gateway, may_be_used_for, none_if_missing
from core.tracking.lineage import Lineage

HELD = "amend.held"
"""Tag of a held registered model: since when, and why."""


def sweep_temporary_folders(prefix: str) -> None:
    """Delete temporary folders that killed publishers left. The caller has the mutex, so no other publisher has any."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(folder, ignore_errors=True)


def ensure(gateway: Gateway, lineage: Lineage) -> None:
    """Create or update the registered model. One left by an earlier model of this name is deleted."""
    name, description = lineage.model.name, descriptions.describe_model(lineage)
    found = none_if_missing(gateway.client.get_registered_model, name)
    if found is not None and not may_be_used_for(found.tags, lineage.model.id):
        gateway.client.delete_registered_model(name)
        found = None
    if found is None:
        gateway.client.create_registered_model(name, {MODEL_ID: str(lineage.model.id)}, description)
    elif found.description != description:
        gateway.client.update_registered_model(name, description)


def ensure_logged_model(
    gateway: Gateway,
    experiment: str,
    run_id: str,
    version: Version,
    write: Callable[[Path, Described], Path],
    prefix: str,
    note: Callable[[str], None],
) -> str:
    """The id of the logged model with a version's weights, which are uploaded unless complete.

    `write` writes the MLflow model to a new folder below the given one. `note` is called with the folder in MLflow
    before the upload.
    """
    found = gateway.client.search_logged_models([experiment], f"source_run_id = '{run_id}'", max_results=1)
    if found:
        model = found[0]
    else:
        name = f"version-{version.number}"
        tags = {"amend.version": str(version.number), "amend.position": str(version.position)}
        model = gateway.client.create_logged_model(experiment, name, run_id, tags)
    note(model.artifact_location)
    if str(model.status) != "READY":
        described = Described(run_id=run_id, model_id=model.model_id)
        described.metadata = {"amend.version": version.number, "amend.position": version.position}
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            package = write(Path(folder), described)
            try:
                gateway.client.log_model_artifacts(model.model_id, str(package))
            finally:
                # if it was purged during a long upload, nobody else would find these files; the mutex is lost by then
                if none_if_missing(gateway.raw.get_logged_model, model.model_id) is None:
                    gateway.raw_delete_files(model.artifact_location)
        gateway.client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def register(gateway: Gateway, run_id: str, logged_model_id: str, version: Version, lineage: Lineage) -> str:
    """The number under which a version is registered, found by its run or created."""
    name = lineage.model.name
    found = gateway.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'", max_results=1)
    if found:
        return str(found[0].version)
    tags = {
        "amend.version": str(version.number),
        "amend.position": str(version.position),
        "amend.kind": version.kind.value,
    }
    made = gateway.client.create_model_version(
        name,
        f"models:/{logged_model_id}",
        run_id,
        tags,
        description=descriptions.describe_version(version, lineage),
        model_id=logged_model_id,
        await_creation_for=0,
    )
    return str(made.version)


def set_aliases(gateway: Gateway, lineage: Lineage) -> None:
    """Update the aliases, the description, and the tag that says whether the model is held.

    A version that is not published yet gets its alias when it is.
    """
    name = lineage.model.name
    registered = none_if_missing(gateway.client.get_registered_model, name)
    if registered is None or not may_be_used_for(registered.tags, lineage.model.id):
        return
    held, tagged = descriptions.describe_hold(lineage.model), registered.tags.get(HELD)
    if held and held != tagged:
        gateway.client.set_registered_model_tag(name, HELD, held)
    elif tagged and not held:
        gateway.client.delete_registered_model_tag(name, HELD)
    if registered.description != (description := descriptions.describe_model(lineage)):
        gateway.client.update_registered_model(name, description)
    holders = {"champion": lineage.champion, "challenger": lineage.challenger, "reference": lineage.reference}
    for alias, version in holders.items():
        now = registered.aliases.get(alias)
        if version is None:
            if now is not None:
                gateway.client.delete_registered_model_alias(name, alias)
        elif version.mlflow and (number := version.mlflow.get("version")) and number != str(now):
            gateway.client.set_registered_model_alias(name, alias, number)
