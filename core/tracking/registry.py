"""The registered model: versions that can be loaded, and the names `champion`, `challenger` and `reference`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow.models import Model as Described
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from core.kprior import State
from core.tables.versions import Version
from core.tracking import descriptions, packaging
from core.tracking.lineage import Lineage
from core.tracking.mlflow_client import MODEL_ID, may_be_used_for, none_if_missing

HELD = "amend.held"
"""The tag of a registered model that is held: since when, and why."""


def sweep_temporary_folders(prefix: str) -> None:
    """Delete what publishers who were killed left behind. Called by who has the lease: nobody else has any."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(folder, ignore_errors=True)


def ensure(client: Any, lineage: Lineage) -> None:
    """The registered model of our model, with what there is to say of it now. One of an earlier model is deleted."""
    name, description = lineage.model.name, descriptions.describe_model(lineage)
    found = none_if_missing(client.get_registered_model, name)
    if found is not None and not may_be_used_for(found.tags, lineage.model.id):
        client.delete_registered_model(name)
        found = None
    if found is None:
        client.create_registered_model(name, {MODEL_ID: str(lineage.model.id)}, description)
    elif found.description != description:
        client.update_registered_model(name, description)


def ensure_logged_model(
    client: Any,
    experiment: str,
    run_id: str,
    version: Version,
    state: State,
    prefix: str,
    note: Callable[[str], None],
) -> str:
    """The id of the MLflow model with a version's weights, uploaded unless it is there whole; `note` hears where to."""
    found = client.search_logged_models([experiment], f"source_run_id = '{run_id}'", max_results=1)
    if found:
        model = found[0]
    else:
        name = f"version-{version.number}"
        tags = {"amend.version": str(version.number), "amend.position": str(version.position)}
        model = client.create_logged_model(experiment, name, run_id, tags)
    note(model.artifact_location)
    if str(model.status) != "READY":
        described = Described(run_id=run_id, model_id=model.model_id)
        described.metadata = {"amend.version": version.number, "amend.position": version.position}
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            package = packaging.package(Path(folder), state, described)
            try:
                client.log_model_artifacts(model.model_id, str(package))
            finally:
                # purged during a long upload: nobody else would find these files; past the lease, which is lost then
                if none_if_missing(client.client.get_logged_model, model.model_id) is None:
                    url = client.client.tracking_uri
                    get_artifact_repository(model.artifact_location, tracking_uri=url).delete_artifacts()  # type: ignore[no-untyped-call]
        client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def register(client: Any, run_id: str, logged_model_id: str, version: Version, lineage: Lineage) -> str:
    """The number under which a version is registered; found by its run, or created."""
    name = lineage.model.name
    found = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'", max_results=1)
    if found:
        return str(found[0].version)
    tags = {
        "amend.version": str(version.number),
        "amend.position": str(version.position),
        "amend.kind": version.kind.value,
    }
    made = client.create_model_version(
        name,
        f"models:/{logged_model_id}",
        run_id,
        tags,
        description=descriptions.describe_version(version, lineage),
        model_id=logged_model_id,
        await_creation_for=0,
    )
    return str(made.version)


def set_aliases(client: Any, lineage: Lineage) -> None:
    """Let the aliases say what is true now, and a tag whether the model is held.

    A version that MLflow has not been told of yet gets its alias with it.
    """
    name = lineage.model.name
    registered = none_if_missing(client.get_registered_model, name)
    if registered is None or not may_be_used_for(registered.tags, lineage.model.id):
        return
    held, tagged = descriptions.describe_hold(lineage.model), registered.tags.get(HELD)
    if held and held != tagged:
        client.set_registered_model_tag(name, HELD, held)
    elif tagged and not held:
        client.delete_registered_model_tag(name, HELD)
    if registered.description != (description := descriptions.describe_model(lineage)):
        client.update_registered_model(name, description)
    holders = {"champion": lineage.champion, "challenger": lineage.challenger, "reference": lineage.reference}
    for alias, version in holders.items():
        now = registered.aliases.get(alias)
        if version is None:
            if now is not None:
                client.delete_registered_model_alias(name, alias)
        elif version.mlflow and version.mlflow.get("version") not in (None, str(now)):
            client.set_registered_model_alias(name, alias, version.mlflow["version"])
