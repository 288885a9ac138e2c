"""The Dockerfile, as far as that can be told without an engine: what it makes, and what must not get into it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.production.compose import read
from tests.production.image import ROOT, Installed, copy_context, stages

PACKAGES = ("amend", "bench", "core", "migrations", "service", "worker")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_linter_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("hadolint")  # also where the environment is not on the path
    done = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_all_targets_are_the_same_small_image_with_other_packages() -> None:
    found = stages()
    assert list(found)[-1] == "cpu"  # the last one is the default
    assert found["runtime"].base.endswith("-slim-bookworm")
    layers = {name: found[name].given("COPY") for name in ("cuda", "packaged", "ray", "cpu")}
    application = "--from=application /application /opt/amend"
    assert layers["cuda"] == ["--from=cuda-packages /opt/amend /opt/amend", application]
    assert layers["packaged"] == ["--from=pruned-packages /opt/amend /opt/amend", application]
    assert layers["ray"] == ["--from=ray-packages /ray /opt/amend", "--from=ray-list /list /opt/amend"]
    assert layers["cpu"] == ["--from=cpu-list /list /opt/amend"]
    assert (found["cuda"].base, found["packaged"].base) == ("runtime", "runtime")
    assert (found["ray"].base, found["cpu"].base) == ("packaged", "packaged")
    for target in ("cuda", "ray", "cpu"):
        assert {name for name, _ in found[target].steps} <= {"COPY", "ENV", "ARG", "LABEL"}
        (labels,) = found[target].given("LABEL")
        for name in ("version", "revision", "created", "source"):
            assert f'org.opencontainers.image.{name}="${{{name.upper()}}}"' in labels


def test_nobody_runs_it_as_root() -> None:
    steps = stages()["runtime"].steps
    names = [name for name, _ in steps]
    assert stages()["runtime"].given("USER") == ["10001:10001"]
    assert "RUN" not in names[names.index("USER") :]


def test_the_cpu_image_asks_for_builds_that_have_no_cuda(tmp_path: Path) -> None:
    """Carries out the steps that say what is to be installed."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (listing,) = stages()["requirements"].given("RUN")
    torch, rest = stages()["cpu-packages"].given("RUN")
    picking = re.sub(r"^--mount=\S+\s+", "", torch).split(";")[0]
    for command in (listing, picking):
        subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    assert (tmp_path / "torch.txt").read_text() == "torch==2.13.0+cpu\n"
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["server"], *extras["s3"]]
    assert (tmp_path / "requirements.txt").read_text().splitlines() == wanted
    assert (tmp_path / "ray.txt").read_text().splitlines() == extras["ray"]
    assert "-r torch.txt" in torch
    assert "-c constraints.txt -r requirements.txt" in rest
    assert stages()["cpu-packages"].given("ARG") == ['TORCH_INDEX=""']


def test_no_address_of_a_registry_is_written_down() -> None:
    files = ("Dockerfile", "docker-compose.yml", "Makefile", "constraints.txt", ".pre-commit-config.yaml")
    for name in (*files, ".github/workflows/ci.yml", ".github/workflows/release.yml", "deploy/prune-packages.sh"):
        hosts = re.findall(r"\w+://([\w.-]+)", (ROOT / name).read_text())
        assert set(hosts) <= {"127.0.0.1", "postgres", "redis", "mlflow", "amend"}, name


def test_only_what_it_is_made_of_gets_into_the_build(tmp_path: Path) -> None:
    copy_context(tmp_path)
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "deploy", *PACKAGES}
    assert [path.name for path in (tmp_path / "deploy").iterdir()] == ["prune-packages.sh"]
    assert not list(tmp_path.rglob("__pycache__"))


def test_all_of_amend_is_in_the_image(installed: Installed) -> None:
    modules = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert modules - {path.relative_to(installed.packages) for path in installed.packages.rglob("*.py")} == set()


def test_libraries_report_nothing_to_their_makers() -> None:
    assert stages()["runtime"].environment({})["ORT_DISABLE_TELEMETRY"] == "1"
    assert read()["services"]["mlflow"]["environment"]["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert read()["services"]["ray-node"]["environment"]["RAY_USAGE_STATS_ENABLED"] == "0"


def test_the_image_alone_is_the_service_with_its_health_check() -> None:
    service, runtime = read()["services"]["api"], stages()["runtime"]
    assert json.loads(runtime.given("CMD")[0]) == service["command"]
    (check,) = runtime.given("HEALTHCHECK")
    assert json.loads(check.partition("CMD ")[2]) == service["healthcheck"]["test"][1:]
    assert runtime.given("EXPOSE") == [service["environment"]["AMEND_PORT"]]
