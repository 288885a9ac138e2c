"""The Helm chart: what helm renders is valid Kubernetes, and agrees with the compose file."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from sqlalchemy import create_engine, insert, text

from core.jobs.messages import TRACKING_QUEUE
from core.jobs.queue import QUEUES
from core.settings import describe_unknown
from core.tables.jobs import Job, JobKind, JobState
from tests.production.compose import read, seconds
from tests.production.image import ROOT

CHART = ROOT / "deploy" / "helm" / "amend"
HELM = Path(sys.executable).with_name("helm")
CUSTOM = {"ScaledObject", "TriggerAuthentication"}
"""Kinds of KEDA, whose schemas Kubernetes does not have."""
MINIMAL = ["--set", "database.host=db.example.org", "--set", "artifacts.url=s3://bucket/amend"]
COMPLETE = ["--values", str(ROOT / "deploy" / "helm" / "examples" / "complete.yaml")]
CLAIM = [
    *MINIMAL[:2],
    *("--set", "artifacts.existingClaim=amend,mlflow.enabled=true,database.sslmode=disable"),
    *("--set", "redis.url=redis://redis:6379/0,networkPolicy.enabled=false,api.replicas=1"),
]
FURTHER = {"amend_oidc_client_secret"}
"""Keys of the secret in complete.yaml that the chart does not know."""
VARIANTS = {"minimal": MINIMAL, "complete": COMPLETE, "claim": CLAIM}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True)


@cache
def rendered(variant: str) -> list[dict[str, Any]]:
    done = helm("template", "test", str(CHART), "--namespace", "models", *VARIANTS[variant])
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(variant: str, kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in rendered(variant) if each["kind"] == kind}


def pods(variant: str) -> dict[str, dict[str, Any]]:
    """The pods' specs by the names of their deployments and jobs."""
    found = {**of_kind(variant, "Deployment"), **of_kind(variant, "Job")}
    return {name: each["spec"]["template"]["spec"] for name, each in found.items()}


def environment(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_linter_finds_nothing(variant: str) -> None:
    done = helm("lint", "--strict", str(CHART), *VARIANTS[variant])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_what_is_rendered_is_valid_kubernetes(variant: str, version: str) -> None:
    names = set()
    for each in rendered(variant):
        names.add((each["kind"], each["metadata"]["name"]))
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)
    assert len(names) == len(rendered(variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_container_runs_as_root_or_writes_outside_its_volumes(variant: str) -> None:
    for name, pod in pods(variant).items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] == 10001, name
        assert pod["automountServiceAccountToken"] is False, name
        (container,) = pod["containers"]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"], name
        assert not security["allowPrivilegeEscalation"], name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert container["resources"]["limits"]["memory"], name


@pytest.mark.parametrize("variant", VARIANTS)
def test_processes_find_their_settings_and_secrets(variant: str) -> None:
    for name, pod in pods(variant).items():
        given = environment(pod)
        assert describe_unknown(given) == [], name
        assert pod["enableServiceLinks"] is False, name  # Kubernetes would set AMEND_PORT=tcp://...
        assert not [variable for variable in given if "PASSWORD" in variable], name
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes), name
        keys = {item["path"] for item in volumes["secrets"]["secret"]["items"]}
        files = {value for value in given.values() if value.startswith("/run/amend/")}
        assert {Path(file).name for file in files} <= keys, name


def test_settings_are_given_to_all_processes_as_they_were_written(tmp_path: Path) -> None:
    values: dict[str, Any] = {"AMEND_MAX_BODY_BYTES": 134217728, "AMEND_CACHE_SECONDS": 0.5}
    values |= {"AMEND_PRIVATE_WEBHOOKS": True, "HTTPS_PROXY": "http://proxy.example.org:3128"}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"settings": values}))
    done = helm("template", "test", str(CHART), *COMPLETE, "--values", str(file))
    assert done.returncode == 0, done.stderr
    kinds = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] in ("Deployment", "Job")]
    assert len(kinds) == len(pods("complete"))
    for each in kinds:
        given = environment(each["spec"]["template"]["spec"])
        written = {name: given.get(name) for name in values}
        assert written == {name: str(value).lower() for name, value in values.items()}, each["metadata"]["name"]


def test_secrets_are_given_to_the_same_services_as_with_compose() -> None:
    same = {"api": "api", "worker-gpu": "worker", "scheduler": "scheduler", "mlflow": "mlflow", "migration": "migrate"}
    same |= {"worker-long": "worker-ray", "ray-head": "ray-head", "ray-node": "ray-node"}
    external = {"amend_broker_url", "aws_credentials", *FURTHER}
    for name, service in same.items():
        volumes = {volume["name"]: volume for volume in pods("complete")[f"test-amend-{name}"]["volumes"]}
        keys = {item["key"] for item in volumes["secrets"]["secret"]["items"]}
        assert keys - external == set(read()["services"][service]["secrets"]), name


def test_further_secrets_are_given_to_the_service_workers_and_scheduler() -> None:
    given = {}
    for name, pod in pods("complete").items():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        given[name] = {item["key"] for item in volumes["secrets"]["secret"]["items"]} & FURTHER
    parts = {"api", "scheduler", "worker-quick", "worker-long", "worker-gpu"}
    assert {name for name, keys in given.items() if keys == FURTHER} == {f"test-amend-{part}" for part in parts}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_queue_has_a_worker(variant: str) -> None:
    served = [environment(pod)["AMEND_QUEUES"] for name, pod in pods(variant).items() if "-worker-" in name]
    assert sorted(queue for queues in served for queue in queues.split(",")) == sorted([*QUEUES, TRACKING_QUEUE])


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_deployment_has_probes_and_workers_and_api_have_budgets(variant: str) -> None:
    for name, deployment in of_kind(variant, "Deployment").items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert "startupProbe" in container, name
        assert "livenessProbe" in container, name
        if "-worker-" in name or name.endswith("-api") and deployment["spec"]["replicas"] > 1:
            budget = of_kind(variant, "PodDisruptionBudget")[name]
            assert budget["spec"]["selector"] == deployment["spec"]["selector"], name
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items(), name


def test_health_checks_are_those_of_the_compose_file() -> None:
    for name, service in (("worker-gpu", "worker"), ("scheduler", "scheduler")):
        (container,) = pods("complete")[f"test-amend-{name}"]["containers"]
        assert container["livenessProbe"]["exec"]["command"][2] == read()["services"][service]["healthcheck"]["test"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_checks_that_run_a_program_have_as_much_time_as_with_compose(variant: str) -> None:
    limit = seconds(read()["x-health"]["timeout"])
    for name, pod in pods(variant).items():
        probes = [probe for key, probe in pod["containers"][0].items() if key.endswith("Probe") and "exec" in probe]
        assert [probe.get("timeoutSeconds") for probe in probes] == [limit] * len(probes), name


def test_the_service_answers_while_proxies_notice_that_it_stops() -> None:
    pod = pods("minimal")["test-amend-api"]
    program, duration = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    # uvicorn waits for requests for ten seconds
    assert 0 < int(duration) < pod["terminationGracePeriodSeconds"] - 10


def test_commands_are_those_of_the_compose_file() -> None:
    services = read()["services"]
    same = {"api": "api", "worker-quick": "worker", "scheduler": "scheduler", "migration": "migrate"}
    for name, service in same.items():
        (container,) = pods("complete")[f"test-amend-{name}"]["containers"]
        assert container["command"] == services[service]["command"], name
    (head,) = pods("complete")["test-amend-ray-head"]["containers"]
    assert set(head["command"]) == set(services["ray-head"]["command"])


def test_keda_counts_the_jobs_of_each_workers_queues() -> None:
    scaled = of_kind("complete", "ScaledObject")
    workers = {name for name in pods("complete") if "-worker-" in name}
    assert set(scaled) == workers
    for name, each in scaled.items():
        assert "replicas" not in of_kind("complete", "Deployment")[name]["spec"], name
        (trigger,) = each["spec"]["triggers"]
        for queue in environment(pods("complete")[name])["AMEND_QUEUES"].split(","):
            assert f"'{queue}'" in trigger["metadata"]["query"], name
        assert trigger["authenticationRef"]["name"] in of_kind("complete", "TriggerAuthentication"), name
    assert scaled["test-amend-worker-gpu"]["spec"]["minReplicaCount"] == 0
    assert scaled["test-amend-worker-long"]["spec"]["maxReplicaCount"] == 2
    assert of_kind("minimal", "ScaledObject") == {}


def test_gpu_and_ray_workers_use_their_images() -> None:
    images = {name: pod["containers"][0]["image"] for name, pod in pods("complete").items()}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert images["test-amend-worker-gpu"] == f"amend:{version}-cuda"
    assert images["test-amend-worker-long"] == images["test-amend-ray-node"] == f"amend:{version}-ray"
    assert images["test-amend-api"] == f"amend:{version}"
    limits = pods("complete")["test-amend-worker-gpu"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 1, "memory": "8Gi"}


def test_the_migration_runs_before_everything_else_and_needs_nothing_of_the_release() -> None:
    (job,) = of_kind("complete", "Job").values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["--set", "artifacts.url=s3://bucket/amend"], "database.host"),
        (["--set", "database.host=db"], "artifacts.url"),
        ([*MINIMAL, "--set", "databse.host=db"], "databse"),
        ([*MINIMAL, "--set", "workers.quick.queues={slow}"], "queues"),
        ([*MINIMAL, "--set", "redis.url=amqp://broker"], "redis"),
        ([*MINIMAL, "--set", "ingress.enabled=true"], "ingress.host"),
    ],
)
def test_wrong_values_are_refused(values: list[str], message: str) -> None:
    done = helm("template", "test", str(CHART), *values)
    assert done.returncode != 0
    assert message in done.stderr


def test_the_query_of_keda_counts_jobs() -> None:
    (trigger,) = of_kind("complete", "ScaledObject")["test-amend-worker-gpu"]["spec"]["triggers"]
    engine = create_engine("sqlite://")
    Job.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("PRAGMA ignore_check_constraints = on"))
        for i, (queue, state) in enumerate(product(QUEUES, JobState)):
            values = {"id": str(i), "model_id": i, "kind": JobKind.ADAPT, "from_position": 0, "to_position": 0}
            connection.execute(insert(Job).values(**values, queue=queue, state=state))
        assert connection.execute(text(trigger["metadata"]["query"])).scalar() == 4  # two queues, two states
