"""All that MLflow shows of a model, as plain data: to look things up, and to see whether anything is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient

from core.tracking.descriptions import timeline_name


@dataclass
class Shown:
    """What an MLflow server shows of the model with a name."""

    client: MlflowClient
    name: str

    def experiment(self, name: str | None = None) -> Any:
        found = self.client.get_experiment_by_name(name or self.name)
        assert found is not None
        return found

    def runs(self) -> dict[str, Any]:
        """Runs of jobs by name."""
        found = self.client.search_runs([self.experiment().experiment_id])
        assert len({run.info.run_name for run in found}) == len(found)
        return {run.info.run_name: run for run in found}

    def lines(self) -> dict[str, Any]:
        """Runs of the timeline by name."""
        found = self.client.search_runs([self.experiment(timeline_name(self.name)).experiment_id])
        assert len(found) == len({run.info.run_name for run in found}) == 3
        return {run.info.run_name: run for run in found}

    def points(self, line: str, metric: str) -> dict[int, float]:
        """A metric of the timeline by position."""
        history = self.client.get_metric_history(self.lines()[line].info.run_id, metric)
        assert len({point.step for point in history}) == len(history)
        return {point.step: point.value for point in history}

    def aliases(self) -> dict[str, str]:
        """The version that has each alias."""
        registered = self.client.get_registered_model(self.name)
        return {alias: str(version) for alias, version in registered.aliases.items()}

    def versions(self) -> dict[str, Any]:
        """Registered versions by their number here."""
        found = self.client.search_model_versions(f"name = '{self.name}'")
        return {version.tags["amend.version"]: version for version in found}

    def figures(self, run: Any) -> set[str]:
        return {file.path for file in self.client.list_artifacts(run.info.run_id, "figures")}

    def everything(self) -> dict[str, Any]:
        """All of it, but for when and by whom it was last touched."""
        runs = {**self.runs(), **self.lines()}
        return {
            "experiments": [self.experiment(name).tags for name in (self.name, timeline_name(self.name))],
            "runs": {name: self.whole(run) for name, run in runs.items()},
            "versions": sorted((v.version, v.source, v.description) for v in self.versions().values()),
            "count": len(self.client.search_model_versions(f"name = '{self.name}'")),
            "models": sorted(m.model_id for m in self.logged_models()),
            "aliases": self.aliases(),
        }

    def whole(self, run: Any) -> dict[str, Any]:
        return {
            "status": (run.info.status, run.info.start_time, run.info.end_time),
            "data": run.data.to_dictionary(),
            "points": sorted(
                (p.key, p.step, p.timestamp, p.value)
                for key in run.data.metrics
                for p in self.client.get_metric_history(run.info.run_id, key)
            ),
            "datasets": sorted(i.dataset.digest for i in run.inputs.dataset_inputs),
            "outputs": sorted(o.model_id for o in run.outputs.model_outputs) if run.outputs else [],
            "figures": self.figures(run),
        }

    def logged_models(self) -> Iterator[Any]:
        yield from self.client.search_logged_models([self.experiment().experiment_id])
