"""`amend verify`: its output, its exit status, and what it needs to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from amend import cli
from amend.verification import verify
from tests.amend.verification import models
from tests.amend.verification.builder import Log, Signer, make_bundle

runner = CliRunner()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A bundle with rows, its key, another key and a head, each in a file."""
    bundle = make_bundle(models.poisson())
    bundle.write(tmp_path / "bundle.zip")
    (tmp_path / "key.pem").write_text(Log().signer.pem)
    (tmp_path / "other.pem").write_text(Signer(2).pem)
    (tmp_path / "head.json").write_text(json.dumps(bundle.log.head(bundle.receipt_size)))
    return {path.stem: str(path) for path in tmp_path.iterdir()}


def test_a_genuine_bundle_exits_with_status_0_and_says_what_it_does_not_prove(files: dict[str, str]) -> None:
    done = runner.invoke(
        cli.app, ["verify", files["bundle"], "--key", files["key"], "--head", files["head"], "--refit"]
    )
    assert done.exit_code == 0, done.output
    head, *lines = done.output.splitlines()
    assert head.split() == ["check", "method", "result"]
    assert "Every check passed." in lines
    assert any(line.startswith("Distance of model churn, version 7") and "passed: distance" in line for line in lines)
    unproven = lines[lines.index("Not proven:") :]
    for words in ("all retained rows", "none of them belongs to the person", "serves predictions", "own statement"):
        assert any(words in line for line in unproven)


@pytest.mark.parametrize("key", [[], ["--key", "other"]])
def test_without_the_right_key_the_status_is_1(key: list[str], files: dict[str, str]) -> None:
    done = runner.invoke(cli.app, ["verify", files["bundle"], *(files.get(word, word) for word in key)])
    assert done.exit_code == 1
    assert "Not every check passed." in done.output
    assert ("failed: " if key else "not established: No key was supplied.") in done.output


def test_json_has_the_same_content(files: dict[str, str]) -> None:
    done = runner.invoke(cli.app, ["verify", files["bundle"], "--key", files["key"], "--json"])
    found = json.loads(done.output)
    assert (done.exit_code, found["passed"]) == (0, True)
    assert found["checks"][0] == {
        "what": "Files of the bundle",
        "means": "SHA-256 against manifest.json",
        "result": "passed",
        "detail": "8 files",
    }
    assert len(found["unproven"]) == 6


@pytest.mark.parametrize("option", [[], ["--key", "nothing"], ["--head", "nothing"], ["--authority", "nothing"]])
def test_files_that_cannot_be_read_are_reported_in_one_line(option: list[str], files: dict[str, str]) -> None:
    bundle = files["bundle"] if option else "nothing"
    done = runner.invoke(cli.app, ["verify", bundle, *option])
    assert done.exit_code == 1
    assert done.output.startswith("amend: Cannot read ")
    assert done.output.count("\n") == 1


def test_a_missing_package_is_reported_with_the_extra(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PACKAGES", ("numpy", "a_package_that_is_missing"))
    done = runner.invoke(cli.app, ["verify", files["bundle"]])
    assert done.exit_code == 1
    assert "a_package_that_is_missing" in done.output
    assert "pip install 'amend[verify]'" in done.output


def test_it_needs_no_package_of_the_server(files: dict[str, str]) -> None:
    """With torch, FastAPI and the other packages of the server out of reach."""
    code = """
import sys
for name in ("torch", "fastapi", "sqlalchemy", "mlflow", "celery", "pandas", "sklearn", "core", "service"):
    sys.modules[name] = None
from amend.verification import verify_bundle
assert verify_bundle(*sys.argv[1:], refit=True).passed
"""
    python = [sys.executable, "-c", code, files["bundle"], files["key"]]
    done = subprocess.run(python, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
