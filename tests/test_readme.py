"""The code in the README and in docs/ must run, and the names and links in them must exist."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import subprocess
import uuid
from pathlib import Path

import httpx
import pytest

from amend.cli import app
from core import errors
from core.settings import Settings
from core.tables.jobs import JobKind
from core.tables.keys import Scope
from core.tables.webhooks import WebhookEvent
from tests.stack import Stack
from tests.worker.deployment import Deployment

ROOT = Path(__file__).parent.parent

DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial" / "getting-started.md"
API = DOCS / "reference" / "api"
# In the order in which the calls of their shell blocks work, one after the other.
API_GUIDE = [
    API / f"{page}.md"
    for page in ("README", "models", "examples", "jobs", "predictions", "labels", "versions", "removals", "erasures")
]
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md")})


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


# How a plugin is written is run as a package, in tests/core/kprior/model/test_plugins.py.
PYTHON_PAGES = [page for page in PAGES if blocks(page, "python") and page.name != "write-a-plugin.md"]


def test_the_pages_with_python_are_found() -> None:
    assert len(PYTHON_PAGES) >= 12


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=name)
def test_the_python_examples_run(page: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMEND_URL", deployment.url)
    monkeypatch.setenv("AMEND_KEY", deployment.admin_key)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})


def calls(pages: list[Path], url: str, home: str) -> list[str]:
    """Return each `api` call of the shell blocks, in order, as a script that calls the service at `url`."""
    shell = [block for page in pages for block in blocks(page, "sh")]
    definitions, *api_calls = "\n".join(shell).split("\napi ")
    assert api_calls
    scripts = (f"{definitions}\napi {call}" for call in api_calls)
    return [script.replace("http://127.0.0.1:8000", url).replace("~/.amend", home) for script in scripts]


def test_every_call_of_the_api_guide_succeeds(stack: Stack, api: httpx.Client) -> None:
    """Calls a service without a worker, with a model of our own. The tutorial's calls are run in amend/test_up.py."""
    model = f"loans-{uuid.uuid4().hex[:8]}"
    for script in calls(API_GUIDE, stack.url, stack.environment["AMEND_HOME"]):
        script = re.sub(r"\bloans\b", model, script)
        if "JOB" in script:
            # a worker would train the model now
            script = script.replace("JOB", api.get("/v1/jobs", params={"model": model}).json()["items"][0]["id"])
            script = script.replace("wait=30", "wait=0")
            stack.train(model)
        if "ERASURE" in script:
            # no model has data about this subject, so that the erasure completes without a worker once it is approved
            erasure = api.post("/v1/erasures", json={"subject": "nobody"}).json()["id"]
            api.post(f"/v1/erasures/{erasure}/approve").raise_for_status()
            script = script.replace("ERASURE", erasure)
        run = subprocess.run(["bash", "-ec", script], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        response = json.loads(run.stdout)
        assert "code" not in response, f"{script}\n{response}"


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub builds them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in headings(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_of_prose_break_at_120_characters(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    # code is indented by four spaces; tables and images cannot be broken
    long = [line for line in prose.splitlines() if len(line) > 120 and not re.match(r" {4}| *\||!\[", line)]
    assert not long


ERRORS = {cls.__name__ for cls in errors.AmendError.__subclasses__()}


def error_codes(path: Path) -> set[str]:
    """Return the error codes in a module: `Conflict("code", ...)`, `Invalid.at(location, "code", ...)`."""
    codes = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            located = isinstance(node.func, ast.Attribute) and node.func.attr == "at"
            is_error = isinstance(node.func, ast.Name) and node.func.id in ERRORS
            code = node.args[int(located)] if (located or is_error) and len(node.args) > located else None
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                codes.add(code.value)
    return codes


def test_the_guide_names_every_error_code() -> None:
    documented = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", (API / "errors.md").read_text()))
    modules = [path for folder in ("core", "service", "worker") for path in (ROOT / folder).rglob("*.py")]
    raised = set().union(*map(error_codes, modules))
    assert len(raised) > 60
    # shown on the console or in the log, not over REST
    of_operators = {"settings_invalid", "mlflow_unavailable", "mlflow_busy"}
    assert raised - documented - of_operators == set()


NAME_IN_CODE = r"`((?:amend|bench|core|service|tests|worker)\.\w+\.[\w.]+)`"
PATH_OF_FILE = r"`((?:amend|bench|core|docs|migrations|service|tests|worker)/[\w./-]+)`"


def test_the_life_of_a_request_names_its_functions() -> None:
    assert len(re.findall(NAME_IN_CODE, (DOCS / "explanation" / "life-of-a-request.md").read_text())) > 40


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_and_files_of_the_code_exist(page: Path) -> None:
    for dotted in re.findall(NAME_IN_CODE, page.read_text()):
        pkgutil.resolve_name(dotted)
    for path in re.findall(PATH_OF_FILE, page.read_text()):
        assert (ROOT / path).exists(), path


def test_every_claim_about_adversaries_names_tests_that_exist() -> None:
    text = (DOCS / "explanation" / "security.md").read_text()
    evidence = text[text.index("## Evidence about erasures") :]
    files = {
        letter: (ROOT / path).read_text() for letter, path in re.findall(r"^- ([A-Z]): `(tests/\S+)`", evidence, re.M)
    }
    claims = [line for line in evidence.splitlines() if line.startswith("| ") and not line.startswith("| attempt |")]
    assert len(claims) > 20
    for claim in claims:
        named = claim.rstrip("|").rpartition(" | ")[2]
        cited = re.findall(r"([A-Z]) ((?:`test_\w+`(?:, )?)+)", named)
        assert cited, claim
        for letter, tests in cited:
            for test in re.findall(r"`(test_\w+)`", tests):
                assert f"def {test}(" in files[letter], f"{test} is not in file {letter}"


def test_the_reference_lists_every_setting() -> None:
    documented = set(re.findall(r"`AMEND_([A-Z_]+)`", (DOCS / "reference" / "settings.md").read_text()))
    settings = {setting.upper() for setting in Settings.model_fields}
    assert settings <= documented
    # read by the client, by `amend up` and by the class itself
    assert documented - settings == {"URL", "KEY", "MLFLOW_PORT", "SECRETS"}


def test_the_reference_lists_every_event_scope_and_kind_of_job() -> None:
    for page, names in (
        ("reference/api/webhooks.md", list(WebhookEvent)),
        ("reference/api/keys.md", list(Scope)),
        ("explanation/security.md", list(Scope)),
    ):
        rows = set(re.findall(r"^\| `([\w.]+)` \|", (DOCS / page).read_text(), re.MULTILINE))
        assert rows >= {name.value for name in names}, page
    kinds = {kind.value for kind in JobKind}
    assert set(re.findall(r"^### (\w+)$", (DOCS / "explanation/jobs.md").read_text(), re.MULTILINE)) == kinds


def test_the_reference_lists_every_command() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text()
    for command in app.registered_commands:
        assert f"`amend {command.name or command.callback.__name__}" in page
    for group in app.registered_groups:
        row = re.search(rf"^\| `amend {group.name or group.typer_instance.info.name}.*", page, re.MULTILINE)
        assert row is not None, group.name
        if "bench" not in row[0]:
            for command in group.typer_instance.registered_commands:
                assert f"`{command.name or command.callback.__name__}`" in row[0], row[0]
