"""Releases: the workflow is valid, runs the commands that work by hand, and the versions agree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.production.image import ROOT, stages

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_workflows_are_valid() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, WORKFLOWS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "amend" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_nothing_is_published_before_everything_was_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == {"test", "wheel", "image"}
    assert jobs["image"]["needs"] == "test"
    steps = [step.get("run", step.get("uses", "")) for step in jobs["image"]["steps"]]
    tested = next(i for i, step in enumerate(steps) if "test_engine.py" in step)
    assert tested < next(i for i, step in enumerate(steps) if "docker push" in step)


@pytest.mark.parametrize("target", ["cpu", "ray", "cuda"])
def test_images_are_built_with_labels_that_say_where_they_come_from(target: str) -> None:
    assert target in stages()
    done = subprocess.run(
        ["make", "-n", "image", f"TARGETS={target}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in ("VERSION", "REVISION", "CREATED", "SOURCE", "TORCH_INDEX"):
        assert f"--build-arg {name}=" in re.sub(r"\s+", " ", done.stdout), name
    assert f"VERSION={VERSION} " in done.stdout
