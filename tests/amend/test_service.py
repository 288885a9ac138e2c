"""The commands against the service itself, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from amend import cli
from tests.stack import Stack

Amend = Callable[..., Result]

ROWS = [{"id": f"e{i}", "subject": f"user-{i % 3}", "y": i % 2, "x0": i / 10, "x1": 1 - i / 10} for i in range(10)]


@pytest.fixture
def amend(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Amend:
    """Run a command with the service's own home: address and key come from there."""
    monkeypatch.setenv("AMEND_PORT", str(stack.port))
    monkeypatch.setenv("AMEND_HOME", stack.environment["AMEND_HOME"])
    return lambda *arguments, **options: CliRunner().invoke(cli.app, [str(a) for a in arguments], **options)


@pytest.fixture
def name(stack: Stack) -> str:
    return stack.model(policy={"holdout": 0.0})


def answer(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def written(folder: Path, form: str) -> Path:
    """The rows as a file of the given form."""
    file, table = folder / f"rows.{form}", pa.Table.from_pylist(ROWS)
    examples = [{k: row[k] for k in ("id", "subject", "y")} | {"x": [row["x0"], row["x1"]]} for row in ROWS]
    if form == "json":
        file.write_text(json.dumps({"examples": examples}))
    elif form == "ndjson":
        file.write_text("\n".join(map(json.dumps, examples)))
    elif form == "csv":
        file.write_text("\n".join([",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]))
    elif form == "arrow":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        pa.parquet.write_table(table, file)
    return file


@pytest.mark.parametrize("form", ["json", "ndjson", "csv", "arrow", "parquet"])
def test_a_file_of_any_form_is_added_once(amend: Amend, name: str, form: str, tmp_path: Path) -> None:
    file = written(tmp_path, form)
    assert answer(amend("examples", "add", name, file, "--json"))["accepted"] == 10
    assert answer(amend("examples", "add", name, file, "--json"))["duplicates"] == 10
    assert answer(amend("examples", "show", name, "e3", "--json"))["x"] == [0.3, 0.7]


def test_a_model_from_its_creation_to_its_deletion(amend: Amend, stack: Stack, tmp_path: Path) -> None:
    name = f"churn-{tmp_path.name}"[:63].replace("[", "-").replace("]", "").lower()
    made = amend("models", "create", name, "--input", '{"kind": "vector", "dim": 2}', "--target", "binary")
    assert made.exit_code == 0, made.output
    assert name in amend("models", "list").stdout
    assert amend("examples", "add", name, written(tmp_path, "csv")).exit_code == 0
    assert answer(amend("models", "adapt", name, "--json"))["state"] == "queued"
    job = answer(amend("jobs", "list", "--model", name, "--json"))["items"][0]["id"]
    assert answer(amend("jobs", "cancel", job, "--json"))["state"] == "cancelled"
    stack.train(name)
    assert answer(amend("predict", name, "[[0.1, 0.9]]", "--json"))["version"] == 1
    assert answer(amend("versions", "list", name, "--json"))["items"][0]["state"] == "champion"
    assert amend("versions", "weights", name, "1", "--output", tmp_path / "w.safetensors").exit_code == 0
    assert (tmp_path / "w.safetensors").stat().st_size > 0
    removed = answer(amend("examples", "remove", name, "--subject", "user-1", "--yes", "--json"))
    assert removed["removed"] == 3
    assert removed["job"]
    changed = amend("models", "change", name, "--regularizer", '{"kind": "l2", "delta": 2}', "--json")
    assert answer(changed)["position"] == 14
    assert amend("models", "delete", name, "--yes").exit_code == 0
    gone = amend("models", "show", name)
    assert gone.exit_code == 1
    assert "model_not_found" in gone.stderr


def test_a_key_is_made_used_and_revoked(amend: Amend, name: str) -> None:
    made = answer(amend("keys", "create", "reader", "--scope", "read", "--model", name, "--json"))
    listed = answer(amend("models", "list", "--key", made["key"], "--json"))["items"]
    assert [model["name"] for model in listed] == [name]
    assert made["id"] in amend("keys", "list").stdout
    assert amend("keys", "revoke", made["id"], "--yes").exit_code == 0
    assert "key_unknown" in amend("models", "list", "--key", made["key"]).stderr


def test_a_bad_example_is_named(amend: Amend, name: str) -> None:
    result = amend("examples", "add", name, "-", "--format", "csv", input="id,y,a,b\nz1,1,0.5,oops\n")
    assert result.exit_code == 1
    assert "examples.0.b" in result.stderr


def test_a_person_is_erased_and_the_receipt_checked(amend: Amend, name: str, tmp_path: Path) -> None:
    letter = ("--alias", f"nobody else of {name}", "--yes", "--reason", "letter", "--json")
    waiting = answer(amend("erasures", "ask", f"nobody of {name}", *letter))
    assert waiting["state"] == "unmatched"
    asked = answer(amend("erasures", "approve", waiting["id"], "--yes", "--json"))
    assert asked["state"] == "completed"
    assert answer(amend("erasures", "receipt", asked["id"]))["erasure"] == asked["id"]
    page = tmp_path / "receipt.html"
    assert amend("erasures", "receipt", asked["id"], "--html", page).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert asked["id"] in amend("erasures", "list", "--state", "completed").stdout
    assert amend("erasures", "extend", asked["id"], "--reason", "late").stderr.startswith("amend: erasure_ended: ")
    verified = amend("receipts", "verify")
    assert (verified.exit_code, verified.stdout.startswith("The register is valid")) == (0, True)
