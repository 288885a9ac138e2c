"""Runs: one for each job that ended, unless it had nothing to do, with parameters, metrics and charts."""

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

import torch
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, Run, RunTag

from core.charts import COLOURS
from core.database import utc_text
from core.kprior import Predictor
from core.kprior.curvature import is_wide
from core.kprior.model.spec import Spec, is_network, loss_of
from core.models.policy import policy_of
from core.tables.documents import certificate_json
from core.tables.jobs import Job, JobState
from core.tables.versions import Comparison, Version
from core.tracking import descriptions
from core.tracking.charts import role_of
from core.tracking.formats import describe_part
from core.tracking.gateway import Gateway
from core.tracking.lineage import Lineage
from core.versions.privacy_rounding import coarse, coarse_certificate, coarse_pair, significant

STATUS = {JobState.SUCCEEDED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}
NOTE = "mlflow.note.content"
MADE = "amend.made"
"""Tag with the time at which a version was made. After the database was restored from a backup, the same job may make
another version with the same number; the run of the first one must not be taken for its run."""
CHARTS_FOLDER = "figures"
"""The folder of a run's charts."""


def ensure(
    gateway: Gateway, experiment: str, job: Job, version: Version | None, lineage: Lineage, name: str | None = None
) -> Run:
    """The run of a job, found by its tags or created; `name` replaces its usual name."""
    for found in gateway.client.search_runs([experiment], f"tags.`amend.job` = '{job.id}'", max_results=100):
        if version is None or is_run_of(found, version):
            return found
    tags = {"amend.job": job.id, "amend.model": lineage.model.name, "amend.kind": job.kind.value}
    if version is not None:
        tags[MADE] = utc_text(version.created_at)
    tags["mlflow.runColor"] = COLOURS["frozen" if version is None else role_of(version)]
    started = milliseconds(job.started_at or job.created_at)
    return gateway.client.create_run(experiment, started, tags, name or descriptions.run_name(job, version))


def is_run_of(run: Run, version: Version) -> bool:
    """Whether a run belongs to a version."""
    tags = run.data.tags
    return bool(tags.get("amend.job") == version.job_id and tags.get(MADE) == utc_text(version.created_at))


def fill(gateway: Gateway, run: Run, job: Job, version: Version | None, lineage: Lineage) -> None:
    """Write the description, tags and positions of a job to its run."""
    description = descriptions.describe_job(job, version, lineage)
    tags: dict[str, object] = {NOTE: description, "amend.request_id": job.request_id}
    if version is not None:
        tags |= {
            "amend.version": version.number,
            "amend.position": version.position,
            "amend.dataset": dataset_digest(version),
        }
    elif job.error:
        tags["amend.error"] = job.error.get("code", "unknown")
    described = [RunTag(name, str(value)) for name, value in tags.items() if value is not None]
    span = {"from_position": job.from_position, "to_position": job.to_position}
    gateway.client.log_batch(run.info.run_id, params=new_params(run, span), tags=described, synchronous=True)


def fill_version(
    gateway: Gateway, run: Run, version: Version, spec: Spec, model_id: str | None, lineage: Lineage
) -> None:
    """Write the parameters and metrics of a version to its run, and the metrics to its logged model, if any."""
    metrics = metrics_at(version, version_metrics(version), lineage.model.name, model_id)
    new = [metric for metric in metrics if metric.key not in run.data.metrics]
    gateway.client.log_batch(
        run.info.run_id, new, new_params(run, version_params(version, spec, lineage)), synchronous=True
    )


def new_params(run: Run, given: Mapping[str, object]) -> list[Param]:
    """Parameters that a run does not have yet: MLflow cannot change them, although the policy may have changed."""
    new = {name: value for name, value in given.items() if value is not None and name not in run.data.params}
    return [Param(name, str(value)[:6000]) for name, value in new.items()]


def fill_comparison(gateway: Gateway, run_id: str, version: Version, figures: Mapping[str, object]) -> None:
    """Write the metrics of a comparison to the run of one of its versions."""
    gateway.client.log_batch(run_id, metrics_at(version, figures), synchronous=True)


def fill_dataset(gateway: Gateway, run: Run, version: Version, lineage: Lineage) -> None:
    """Log the dataset of a version: its position, but nothing that was computed from the examples."""
    dataset = Dataset(
        name=lineage.model.name,
        digest=dataset_digest(version),
        source_type="amend",
        source=json.dumps({"uri": f"amend:/models/{lineage.model.name}/ledger@{version.position}"}),
        profile=json.dumps({"position": version.position}),
    )
    if run.inputs is None or not run.inputs.dataset_inputs:
        tags = [InputTag("mlflow.data.context", "training")]
        gateway.client.log_inputs(run.info.run_id, datasets=[DatasetInput(dataset, tags)])


def fill_model(gateway: Gateway, run: Run, logged_model_id: str, version: Version) -> None:
    """Log the model that a run created."""
    if run.outputs is None or not run.outputs.model_outputs:
        gateway.client.log_outputs(run.info.run_id, [LoggedModelOutput(logged_model_id, version.number)])


def fill_figures(gateway: Gateway, run_id: str, pictures: dict[str, bytes], prefix: str) -> None:
    """Upload charts; a chart of the same name is replaced."""
    if not pictures:
        return
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        for name, data in pictures.items():
            Path(folder, name).write_bytes(data)
        gateway.client.log_artifacts(run_id, folder, CHARTS_FOLDER)


def end(gateway: Gateway, run_id: str, job: Job) -> None:
    """End a run."""
    gateway.client.set_terminated(run_id, STATUS[job.state], milliseconds(job.finished_at or job.created_at))


def version_params(version: Version, spec: Spec, lineage: Lineage) -> dict[str, object]:
    """The parameters of a version."""
    return {
        "position": version.position,
        "parent": version.parent,
        "method": version.method,
        "solver": solver(spec),
        "architecture": describe_part(spec["architecture"]),
        "regularizer": describe_part(spec["regularizer"]),
        "loss": describe_part(loss_of(spec)),
        "memory_size": version.memory.get("size"),
        "memory_fraction": version.memory.get("fraction"),
        "memory_select": policy_of(lineage.model).memory.select,
        **{f"training_{name}": value for name, value in lineage.model.training.items()},
    }


def solver(spec: Spec) -> str:
    """The solver that the engine uses."""
    if is_network(spec["architecture"]):
        return "Adam"
    with torch.device("meta"):
        wide = is_wide(Predictor(spec, device="meta"))
    return "L-BFGS" if wide else "Newton"


def version_metrics(version: Version) -> dict[str, object]:
    """The metrics of a version, in groups that MLflow's UI shows.

    MLflow never deletes metrics, so none may reveal a row of the holdout, which may have to be erased one day.
    """
    rounded = coarse_certificate(version.certificate)
    certificate = certificate_json(rounded) if rounded else {}
    certificate |= {f"audit_{name}": value for name, value in (certificate.pop("audit", None) or {}).items()}
    for label, bound in (certificate.pop("labels", None) or {}).items():
        certificate[f"{label}/relative"] = bound["relative"]
    cost = {**version.cost, "backward_passes": significant(float(version.cost["backward_passes"]), 1)}
    ledger = {"position": version.position}
    groups = {"holdout": coarse(version.metrics), "certificate": certificate, "cost": cost, "ledger": ledger}
    return {f"{group}/{clean(name)}": value for group, metrics in groups.items() for name, value in metrics.items()}


def clean(name: str) -> str:
    """The name of a metric with only those characters of a label that MLflow accepts.

    >>> clean("accuracy"), clean("C++ (new)/auc"), clean("../auc")
    ('accuracy', 'C__ _new_/auc', '__/auc')
    """
    label, slash, metric = name.rpartition("/")
    return re.sub(r"[^\w :-]|^ | $", "_", label) + slash + metric


def comparison_metrics(comparison: Comparison, retrained: Version) -> dict[str, object]:
    """The metrics of a comparison with a retrained version, flat: `comparison/accuracy_adapted`, ..."""

    def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for inner, part in value.items():
                yield from flat(f"{name}_{inner}", part)
        else:
            yield f"comparison/{name}", value

    # the cost of each version is in its own run
    figures = coarse_pair(comparison.result, retrained.metrics)
    return {key: value for name, part in figures.items() if name != "cost" for key, value in flat(name, part)}


def metrics_at(
    version: Version, metrics: Mapping[str, object], dataset: str | None = None, model_id: str | None = None
) -> list[Metric]:
    """Metrics with the time and number of a version as timestamp and step, so that writing them again changes nothing.

    The step is not the position, because several versions may have the same one.
    """
    when, step = milliseconds(version.created_at), version.number
    of = (
        {}
        if model_id is None
        else {"model_id": model_id, "dataset_name": dataset, "dataset_digest": dataset_digest(version)}
    )
    return [Metric(name, float(value), when, step, **of) for name, value in metrics.items() if finite(value)]


def dataset_digest(version: Version) -> str:
    """What MLflow tells datasets apart by: the position in the ledger.

    MLflow cannot delete a dataset, and a hash of the examples would confirm a guess of an erased one.
    """
    return f"ledger@{version.position}"


def finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
