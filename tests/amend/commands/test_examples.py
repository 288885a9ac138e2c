"""``amend examples``: a file goes out as it is, under the right name; removals say what they remove."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from amend import example_batches
from amend.commands import example_upload
from tests.amend.commands.responses import AT, job
from tests.amend.conftest import StandIn

ACCEPTED = {"accepted": 1, "duplicates": 0, "first_position": 1, "last_position": 1}
REPLACED = {"replaced": 1, "unchanged": 0, "position": 2, "job": "j1"}
REMOVED = {"id": "r1", "removed": 1, "unknown": [], "position": 2, "job": "j1"}


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a.json", "application/json"),
        ("a.ndjson", "application/x-ndjson"),
        ("a.jsonl", "application/x-ndjson"),
        ("a.CSV", "text/csv"),
        ("a.arrow", "application/vnd.apache.arrow.stream"),
        ("a.parquet", "application/vnd.apache.parquet"),
    ],
)
def test_content_type_follows_the_suffix(name: str, content_type: str, stand_in: StandIn, tmp_path: Path) -> None:
    content = b"\x00\xff any bytes \r\n"
    (tmp_path / name).write_bytes(content)
    stand_in.answer(ACCEPTED, status=201)
    result = stand_in.run("examples", "add", "churn", str(tmp_path / name))
    assert result.exit_code == 0
    assert "last_position" in result.stdout
    asked = stand_in.asked[0]
    assert (asked.path, asked.headers["Content-Type"], asked.body) == (
        "/v1/models/churn/examples",
        content_type,
        content,
    )


@pytest.mark.parametrize("options", [(), ("--time", "day")], ids=["as it is", "in batches"])
def test_examples_can_be_added_with_a_source(options: tuple[str, ...], stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "march.csv"
    file.write_text("id,y,day,a\ne1,1,2026-03-01,2\n")
    stand_in.answer(ACCEPTED, status=201)
    assert stand_in.run("examples", "add", "churn", str(file), "--source", "march load", *options).exit_code == 0
    asked = stand_in.asked[0]
    assert asked.path.replace("+", "%20") == "/v1/models/churn/examples?source=march%20load"
    assert (b"time" in asked.body) == bool(options)


def test_an_empty_file_is_not_sent(stand_in: StandIn, tmp_path: Path) -> None:
    for name in ("a.csv", "a.json", "a.parquet"):
        (tmp_path / name).touch()
        result = stand_in.run("examples", "add", "churn", str(tmp_path / name))
        assert (result.exit_code, stand_in.asked) == (1, [])
        assert f"{tmp_path / name} contains no examples" in result.stderr


def test_stdin_needs_a_format(stand_in: StandIn) -> None:
    stand_in.answer(ACCEPTED, status=201)
    assert stand_in.run("examples", "add", "churn", "-", stdin=b"id,y,a\n").exit_code == 1
    assert stand_in.asked == []
    assert stand_in.run("examples", "add", "churn", "-", "--format", "csv", stdin=b"id,y,a\n").exit_code == 0
    assert stand_in.asked[0].body == b"id,y,a\n"


def test_a_json_list_is_a_batch(stand_in: StandIn, tmp_path: Path) -> None:
    examples = [{"id": "a1", "x": [1.0], "y": 1}]
    (tmp_path / "a.json").write_text(" " + json.dumps(examples))
    stand_in.answer(ACCEPTED, status=201)
    stand_in.run("examples", "add", "churn", str(tmp_path / "a.json"))
    assert stand_in.asked[0].json() == {"examples": examples}


@pytest.mark.parametrize("kind", ["new_file", "new_stream"])
def test_both_kinds_of_arrow_arrive_as_a_stream(kind: str, stand_in: StandIn, tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "y": [0, 1], "job": pa.array(["x", "y"]).dictionary_encode()})
    sink = io.BytesIO()
    with getattr(pa.ipc, kind)(sink, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "a.arrow").write_bytes(sink.getvalue())
    stand_in.answer(ACCEPTED, status=201)
    stand_in.run("examples", "add", "churn", str(tmp_path / "a.arrow"))
    assert pa.ipc.open_stream(stand_in.asked[0].body).read_all().equals(table)


def test_a_file_of_corrections_is_put_and_waited_for(stand_in: StandIn, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,y,a\na1,1,2\n")
    stand_in.answer(REPLACED, job("succeeded"), status=202)
    result = stand_in.run("examples", "replace", "churn", str(tmp_path / "a.csv"), "--wait")
    assert result.exit_code == 0, result.output
    asked = stand_in.asked[0]
    assert (asked.method, asked.path, asked.headers["Content-Type"]) == ("PUT", "/v1/models/churn/examples", "text/csv")
    assert asked.headers["Idempotency-Key"]
    assert stand_in.asked[1].path.startswith("/v1/jobs/j1")


def test_columns_of_a_file_may_have_other_names(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer(ACCEPTED, status=201)
    file, names = tmp_path / "a.csv", ["--target", "left", "--id", "customer", "--subject", "customer"]
    # what values are is for the service to say: an id of zeros stays what it is
    file.write_bytes('\ufeffcustomer,plan,left\n007,"a, b",1\n'.encode())
    assert stand_in.run("examples", "add", "churn", str(file), *names).exit_code == 0
    assert stand_in.asked[-1].body == b'y,id,subject,plan\r\n1,007,007,"a, b"\r\n'
    parquet.write_table(pa.table({"customer": ["007"], "plan": ["a"], "left": [1]}), tmp_path / "a.parquet")
    answered = stand_in.run("examples", "replace", "churn", str(tmp_path / "a.parquet"), *names)
    assert stand_in.asked[-1].headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    sent = pa.ipc.open_stream(stand_in.asked[-1].body).read_all()
    assert sent.to_pylist() == [{"plan": "a", "y": 1, "id": "007", "subject": "007"}], answered.output
    for content, told in (
        ("a,b\n1,2\n", "has no column 'left'. Its columns are 'a', 'b'"),
        ("left,a\n1\n", "Line 2 has 1 fi"),
    ):
        file.write_text(content)
        refused = stand_in.run("examples", "add", "churn", str(file), "--target", "left")
        assert (refused.exit_code, told in refused.stderr) == (1, True), refused.stderr
    assert "apply only to .csv, .arrow" in stand_in.run("examples", "add", "churn", "a.json", "--target", "left").stderr


def added(first: int, last: int) -> dict[str, int]:
    positions = {"first_position": first, "last_position": last}
    return {"accepted": last - first + 1, "duplicates": 0, **positions, "quarantined": 0}


@pytest.mark.parametrize("why", ["large", "compressed", "refused"])
def test_a_file_that_is_too_large_for_one_request_goes_out_in_pieces(
    why: str, stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)
    if why == "large":
        monkeypatch.setattr(example_upload, "MAX_UNSPLIT_BYTES", 100)
    content = "id,y,a\n" + "".join(f"e{i},1,2\n" for i in range(25))
    file = tmp_path / ("a.csv.gz" if why == "compressed" else "a.csv")
    file.write_bytes(gzip.compress(content.encode()) if why == "compressed" else content.encode())
    stand_in.answer(added(1, 10), added(11, 20), added(21, 25), status=201)
    if why == "refused":
        stand_in.answers.insert(0, (413, {"code": "batch_too_large", "detail": "25 examples; 10 are allowed"}))
    result = stand_in.run("examples", "add", "churn", str(file), "--json")
    assert json.loads(result.stdout) == added(1, 25), result.output
    assert [asked.body.count(b"\n") for asked in stand_in.asked[-3:]] == [11, 11, 6]
    assert all(asked.body.startswith(b"id,y,a\n") for asked in stand_in.asked)


def test_an_error_in_a_batch_names_the_row_of_the_file(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)
    monkeypatch.setattr(example_upload, "MAX_UNSPLIT_BYTES", 0)
    (tmp_path / "a.ndjson").write_text('{"id": "a"}\n' * 25)
    bad = {"loc": ["examples", 3, "y"], "msg": "is not 0 or 1"}
    stand_in.answer(added(1, 10))
    stand_in.answers += [(422, {"code": "label_invalid", "detail": "examples.3.y: is not 0 or 1", "errors": [bad]})]
    result = stand_in.run("examples", "add", "churn", str(tmp_path / "a.ndjson"))
    assert result.exit_code == 1
    told = f"Row 14 of {tmp_path}/a.ndjson: examples.13.y: is not 0 or 1"
    assert result.stderr == (
        f"amend: label_invalid: {told} The 10 examples before it are stored; it is safe to add the file again.\n"
    )


def test_corrections_in_pieces_wait_for_the_last_job(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 1)
    monkeypatch.setattr(example_upload, "MAX_UNSPLIT_BYTES", 0)
    (tmp_path / "a.csv").write_text("id,y,a\na1,1,2\na2,1,2\n")
    stand_in.answer(REPLACED, {**REPLACED, "job": "j2"}, job("succeeded"))
    result = stand_in.run("examples", "replace", "churn", str(tmp_path / "a.csv"), "--wait", "--json")
    assert json.loads(result.stdout)["state"] == "succeeded"
    assert stand_in.asked[2].path.startswith("/v1/jobs/j2")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["examples", "add", "churn", "nowhere.csv"], "Cannot read {}: No such file or directory."),
        (["models", "create", "churn", "--spec", "nowhere.csv"], "--spec is neither JSON nor the name of {}: {}"),
        (["models", "policy", "churn", "@nowhere.csv"], "Cannot read {}: No such file or directory."),
        (["predict", "churn", "nowhere.csv"], "The input is neither JSON nor the name of {}: {}"),
        (["erasures", "file", "nowhere.csv"], "Cannot read {}: No such file or directory."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_missing_file_is_reported_in_one_line(command: list[str], message: str, stand_in: StandIn) -> None:
    result = stand_in.run(*command)
    assert result.exit_code == 1
    named = message.replace("name of {}", "name of a file that can be read").format("nowhere.csv")
    assert result.stderr == f"amend: {named}\n"
    assert stand_in.asked == []


def test_remove_sends_ids_or_subjects(stand_in: StandIn) -> None:
    stand_in.answer(REMOVED, status=202)
    assert stand_in.run("examples", "remove", "churn", "a1", "a2", "--yes").exit_code == 0
    assert stand_in.run("examples", "remove", "churn", "--subject", "user-7", "--yes").exit_code == 0
    assert stand_in.run("examples", "remove", "churn", "--source", "monday", "--yes").exit_code == 0
    assert stand_in.run("examples", "remove", "churn", "--positions", "11", "20", "--yes").exit_code == 0
    assert [asked.json() for asked in stand_in.asked] == [
        {"ids": ["a1", "a2"]},
        {"subjects": ["user-7"]},
        {"source": "monday"},
        {"positions": [11, 20]},
    ]
    assert stand_in.asked[0].path == "/v1/models/churn/removals"


def test_a_removal_is_shown_later(stand_in: StandIn) -> None:
    counts = {"model": "churn", "removed": 1, "unknown_count": 0, "created_at": AT}
    stand_in.answer({"id": "r1", "position": 2, "job": "j1", **counts})
    assert "unknown_count" in stand_in.run("examples", "removal", "churn", "r1").stdout
    assert stand_in.asked[0].path == "/v1/models/churn/removals/r1"


@pytest.mark.parametrize("what", [[], ["a1", "--subject", "user-7"], ["--source", "a", "--positions", "1", "2"]])
def test_remove_needs_exactly_one_selection(what: list[str], stand_in: StandIn) -> None:
    result = stand_in.run("examples", "remove", "churn", *what, "--yes")
    assert result.exit_code == 1
    assert "exactly one" in result.stderr
    assert stand_in.asked == []


def test_remove_asks_for_confirmation(stand_in: StandIn) -> None:
    assert stand_in.run("examples", "remove", "churn", "a1", stdin="n\n").exit_code == 1
    assert stand_in.asked == []


def test_remove_shows_how_many_examples_a_source_has(stand_in: StandIn) -> None:
    stand_in.answer({"items": [{}] * 3, "next": None}, {"items": [{}] * 1000, "next": "1000"}, REMOVED)
    asked = stand_in.run("examples", "remove", "churn", "--source", "a b", stdin="n\n")
    assert "Remove 3 examples of a b, and quarantined ones, from churn?" in asked.stderr
    assert stand_in.asked[0].path == "/v1/models/churn/examples?source=a+b&limit=1000"
    asked = stand_in.run("examples", "remove", "churn", "--source", "a b", stdin="y\n")
    assert "Remove more than 1000 examples of a b" in asked.stderr
    assert (asked.exit_code, stand_in.asked[-1].json()) == (0, {"source": "a b"})
    asked = stand_in.run("examples", "remove", "churn", "--positions", "11", "20", stdin="n\n")
    assert "Remove the examples at positions 11 to 20 from churn?" in asked.stderr


def test_remove_waits_for_the_job_it_caused(stand_in: StandIn) -> None:
    stand_in.answer(REMOVED, job("running"), job("succeeded"))
    assert stand_in.run("examples", "remove", "churn", "a1", "--yes", "--wait").exit_code == 0
    assert [asked.path for asked in stand_in.asked[1:]] == ["/v1/jobs/j1", "/v1/jobs/j1?wait=1"]


def test_an_export_is_streamed_to_the_file(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer(b"all of them")
    file = tmp_path / "churn.parquet"
    written = stand_in.run("examples", "export", "churn", "--output", str(file))
    assert (written.exit_code, written.stdout, file.read_bytes()) == (0, f"Wrote {file}.\n", b"all of them")
    assert stand_in.run("examples", "export", "churn", "--output", "-", "--format", "arrow").stdout == "all of them"
    assert [asked.path for asked in stand_in.asked] == [
        "/v1/models/churn/examples/export?format=parquet",
        "/v1/models/churn/examples/export?format=arrow",
    ]
    for place, told in (
        (tmp_path / "none.csv", "Cannot infer the format"),
        (tmp_path / "no" / "a.arrow", "No such file"),
    ):
        refused = stand_in.run("examples", "export", "churn", "--output", str(place))
        assert (refused.exit_code, told in refused.stderr) == (1, True), refused.stderr


def test_lists_name_the_examples_that_are_wanted(stand_in: StandIn) -> None:
    stand_in.answer({"items": [], "next": None})
    options = ("--quarantined", "--source", "nightly")
    assert stand_in.run("examples", "list", "churn", *options).exit_code == 0
    assert stand_in.run("examples", "list", "churn", "--pending").exit_code == 0
    assert [asked.path for asked in stand_in.asked] == [
        "/v1/models/churn/examples?state=quarantined&source=nightly",
        "/v1/models/churn/examples?label=pending",
    ]
