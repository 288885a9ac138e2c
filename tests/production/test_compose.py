"""docker-compose.yml is a valid file, and what it says is a working Amend."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from core.settings import Settings
from core.versions import store_identity
from tests.production.compose import FILE, Project, read, seconds
from tests.production.image import ROOT, Installed
from tests.worker.deployment import Deployment, problem

pytestmark = pytest.mark.timing


class Production(Deployment):
    """The services of the file, seen from outside: from the ports that it publishes."""

    def __init__(self, folder: Path, installed: Installed) -> None:
        super().__init__(folder)
        self.project = Project(folder, installed, AMEND_PROCESSES="2", AMEND_WORKERS="2")
        self.url = f"http://127.0.0.1:{self.project.port('api')}"
        self.mlflow = f"http://127.0.0.1:{self.project.port('mlflow')}"

    @property
    def admin_key(self) -> str:
        return self.project.secret("amend_admin_key")

    @property
    def artifacts(self) -> Path:
        return self.project.volumes / "artifacts"

    def down(self) -> dict[str, int | None]:
        return self.project.down()

    def readiness(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/readyz", verify=False).json()
        return answer

    def shown(self, name: str) -> str | None:
        """The number of the version that MLflow calls the champion of a model."""
        path = "/api/2.0/mlflow/registered-models/alias"
        auth = ("amend", self.project.secret("amend_mlflow_password"))
        answer = httpx.get(f"{self.mlflow}{path}", params={"name": name, "alias": "champion"}, auth=auth)
        tags = answer.json().get("model_version", {}).get("tags", [])
        return next((tag["value"] for tag in tags if tag["key"] == "amend.version"), None)


@pytest.fixture
def production(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    production = Production(tmp_path_factory.mktemp("production"), installed)
    try:
        production.project.up()
        yield production
    finally:
        production.project.remove()


def test_the_file_is_what_the_compose_specification_allows() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_service_restarts_is_checked_and_has_bounds() -> None:
    for name, service in read()["services"].items():
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
        assert "test" in service["healthcheck"] or name == "migrate", name
        assert service["deploy"]["resources"]["limits"]["memory"], name
        assert "container_name" not in service, name  # would forbid --scale


def test_no_container_is_root_or_writes_outside_its_volumes() -> None:
    for name, service in read()["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "amend" in service["image"] or service["user"] in ("postgres", "redis"), name


def test_numbers_of_containers_come_from_variables() -> None:
    given = {"AMEND_WORKERS": "4", "AMEND_RAY_WORKERS": "2", "AMEND_RAY_NODES": "3"}
    services = read(given)["services"]
    counts = {name: service["deploy"].get("replicas") for name, service in services.items()}
    assert {name: count for name, count in counts.items() if count} == {
        "worker": "4",
        "worker-ray": "2",
        "ray-node": "3",
    }


def test_workers_may_be_many_and_have_the_time_to_hand_back_their_jobs() -> None:
    for name in ("worker", "worker-gpu", "worker-ray"):
        service = read()["services"][name]
        assert "ports" not in service
        assert seconds(service["stop_grace_period"]) > Settings(**service_settings(service)).shutdown_timeout + 5


def test_gpus_have_a_worker_and_queues_of_their_own() -> None:
    service = read({"AMEND_GPUS": "4"})["services"]["worker-gpu"]
    settings = Settings(**service_settings(service))
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["count"], settings.worker_processes, settings.device) == ("4", 4, "cuda")
    assert settings.queues == "quick-gpu,long-gpu"


def test_nodes_of_ray_have_what_workers_have_and_ask_for_a_token() -> None:
    services = read()["services"]
    settings = Settings(**service_settings(services["worker-ray"]))
    for name in ("worker-ray", "ray-head", "ray-node", "ray-node-gpu"):
        service = services[name]
        command = " ".join(service["command"])
        assert ("--head --port=6379" if name == "ray-head" else settings.ray_address) in command, name
        assert set(services["worker"]["environment"]) - {
            "AMEND_QUEUES",
            "AMEND_WORKER_PROCESSES",
            "AMEND_DEVICE",
        } <= set(service["environment"])
        assert {"amend_database_password", "amend_secret_key", "ray_auth_token"} <= set(service["secrets"]), name
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_auth_token"
        (store,) = re.findall(r"--object-store-memory=(\d+)", command)
        assert int(store) < int(service["shm_size"].removesuffix("g")) * 2**30, name
        assert "ports" not in service, name


def test_every_setting_can_be_given_in_the_file_of_variables() -> None:
    secret = {"database_password", "mlflow_password", "secret_key", "admin_key", "oidc_client_secret"}
    fixed = {"home", "host", "port", "signing_key_file", "shutdown_timeout", "device", "ray_address"}
    of_one = {"processes": "api", "queues": "worker", "worker_processes": "worker", "ray_processes": "worker-ray"}
    for name in sorted(set(Settings.model_fields) - secret - fixed):
        variable = f"AMEND_{name.upper()}"
        services = read({variable: "7"})["services"]
        for service in [of_one[name]] if name in of_one else ["api", "worker", "scheduler", "migrate", "worker-ray"]:
            assert services[service]["environment"].get(variable) == "7", (variable, service)
    assert "AMEND_BACKUP_RETENTION" not in read()["services"]["api"]["environment"]  # has its default then


def service_settings(service: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in service["environment"] if name.startswith("AMEND_")]
    return {name.removeprefix("AMEND_").lower(): service["environment"][name] for name in names}


def test_the_services_of_the_compose_file_work_and_stop_on_request(production: Production) -> None:
    """In one test, so that the services are started once, however many processes run the tests."""
    a_model_learns_forgets_and_is_shown(production)
    alerts_are_about_figures_that_there_are(production)
    no_secret_is_in_an_environment_a_command_or_a_log(production)
    another_store_is_not_taken_and_one_that_is_gone_is_told(production)
    everything_ends_in_its_time(production)


def a_model_learns_forgets_and_is_shown(production: Production) -> None:
    production.wait_until(lambda: production.readiness()["status"] == "ready")
    name = production.new_model()
    x, y = problem(60)
    production.add_examples(name, x, y, split="train", subject="kept")
    production.add_examples(name, x[:3], y[:3], first=100, split="train", subject="erased")
    assert production.adapted(name)["state"] == "succeeded"
    assert production.ended(production.remove(name, range(5))["job"])["state"] == "succeeded"
    erasure = production.post("/v1/erasures", {"subject": "erased"})["id"]
    production.wait_until(lambda: production.get(f"/v1/erasures/{erasure}")["state"] == "completed")
    assert production.get(f"/v1/erasures/{erasure}/receipt")["number"] == 1
    assert production.get(f"/v1/models/{name}")["counts"]["train"] == 55

    number = production.get(f"/v1/models/{name}")["champion"]
    production.wait_until(lambda: production.shown(name) == str(number))
    assert httpx.get(f"{production.mlflow}/version").status_code == 401
    kept = list((production.project.volumes / "mlflow").rglob("*.safetensors"))
    assert len(kept) == 1  # the others knew the person who was erased


def alerts_are_about_figures_that_there_are(production: Production) -> None:
    alerts = yaml.safe_load((ROOT / "docs" / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    with production.client() as client:
        figures = client.get("/metrics").raise_for_status().text
    for alert in alerts:
        for name in re.findall(r"\b(?:amend|process)_\w+", alert["expr"]):
            assert f"\n# TYPE {name.removesuffix('_bucket').removesuffix('_total')}" in figures, alert


def no_secret_is_in_an_environment_a_command_or_a_log(production: Production) -> None:
    secrets = [production.project.secret(name) for name in production.project.spec["secrets"]]
    texts = [log.read_text() for log in production.folder.glob("*.log")]
    for container in production.project.containers:
        for process in container.processes():
            texts += [Path(f"/proc/{process}/{file}").read_text() for file in ("environ", "cmdline")]
    assert texts
    assert not [secret for secret in secrets if any(secret in text for text in texts)]


def another_store_is_not_taken_and_one_that_is_gone_is_told(production: Production) -> None:
    elsewhere = production.project.container("worker", artifacts=production.folder / "elsewhere")
    elsewhere.start()
    assert elsewhere.process is not None
    assert elsewhere.process.wait(60) == 1
    assert "AMEND_ARTIFACTS_URL" in elsewhere.log.read_text()

    mark = production.artifacts / store_identity.FILE
    mark.rename(mark.with_suffix(".gone"))
    told = production.readiness()
    assert (told["status"], told["store"]["ok"]) == ("down", False)
    assert "does not belong to this database" in told["store"]["detail"]
    mark.with_suffix(".gone").rename(mark)
    assert production.readiness()["status"] == "ready"


def everything_ends_in_its_time(production: Production) -> None:
    ended = production.down()
    assert set(ended) == {"api-1", "worker-1", "worker-2", "scheduler-1", "mlflow-1", "redis-1", "postgres-1"}
    told = -signal.SIGTERM  # uvicorn ends by the signal, once it has ended everything else
    assert set(ended.values()) <= {0, told}, ended
