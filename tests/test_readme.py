"""What the README and the guides show must run, and what they refer to must be there."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import uuid
from pathlib import Path

import httpx
import pytest

from tests.stack import Stack
from tests.worker.deployment import Deployment

ROOT = Path(__file__).parent.parent
README, GUIDE, MATHEMATICS = ROOT / "README.md", ROOT / "docs" / "api.md", ROOT / "docs" / "mathematics.md"
BROUGHT = ROOT / "docs" / "bring-your-own.md"
PAGES_THAT_RUN = ("columns", "classes", "corrections", "regularizer", "loss", "kernel-models", "uncertainty")
CHANGES = [ROOT / "docs" / f"{name}.md" for name in PAGES_THAT_RUN]
PAGES = [README, *(ROOT / "docs").glob("*.md")]


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
@pytest.mark.parametrize("page", [README, GUIDE, MATHEMATICS, BROUGHT, *CHANGES], ids=lambda page: page.name)
def test_the_python_examples_run(page: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMEND_URL", deployment.url)
    monkeypatch.setenv("AMEND_KEY", deployment.admin_key)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})


def calls(page: Path, url: str, home: str) -> list[str]:
    """The calls in the shell blocks of a page, in their order, as scripts for a service of our own."""
    definitions, *found = "\n".join(blocks(page, "sh")).split("\napi ")
    assert found
    scripts = (f"{definitions}\napi {call}" for call in found)
    return [script.replace("http://127.0.0.1:8000", url).replace("~/.amend", home) for script in scripts]


def test_every_call_of_the_guide_is_answered_with_success(stack: Stack, api: httpx.Client) -> None:
    """Against a service without a worker, with a model of our own. The README's calls are run in amend/test_up.py."""
    name = f"loans-{uuid.uuid4().hex[:8]}"
    for script in calls(GUIDE, stack.url, stack.environment["AMEND_HOME"]):
        script = re.sub(r"\bloans\b", name, script)
        if "JOB" in script:
            # a worker would train the model now
            script = script.replace("JOB", api.get("/v1/jobs", params={"model": name}).json()["items"][0]["id"])
            script = script.replace("wait=30", "wait=0")
            stack.train(name)
        if "ERASURE" in script:
            # of a person whom nobody knows: completed without a worker
            script = script.replace("ERASURE", api.post("/v1/erasures", json={"subject": "nobody"}).json()["id"])
        run = subprocess.run(["bash", "-ec", script], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        answer = json.loads(run.stdout)
        assert "code" not in answer, f"{script}\n{answer}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_guide_names_every_error_code() -> None:
    """Codes are the first text after `Error(` or `.at(place, `, and those of the framework's own errors."""
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", GUIDE.read_text()))
    source = "".join(
        path.read_text() for folder in ("core", "service", "worker") for path in (ROOT / folder).rglob("*.py")
    )
    kinds = "Malformed|Invalid|Unauthorized|Forbidden|NotFound|Conflict|TooLarge|Unsupported|TooMany|Unavailable"
    raised = set(re.findall(rf"(?:{kinds})\(\s*\"([a-z_]+)\"", source))
    raised |= set(re.findall(r"\.at\(.*?\"([a-z]+_[a-z_]+)\",", source))
    # told on the console or in the log, not over REST
    of_operators = {"settings_invalid", "mlflow_unavailable", "mlflow_busy"}
    assert raised - named - of_operators == set()


def test_the_walks_pass_functions_that_are_there() -> None:
    page = (ROOT / "docs" / "life-of-a-request.md").read_text()
    names = re.findall(r"`((?:core|service|worker)\.[\w.]+)`", page)
    assert len(names) > 40
    for name in names:
        pkgutil.resolve_name(name)
