"""``amend models``: what is asked of the service."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from tests.amend.commands.responses import AT, MODEL, SHOWN, held
from tests.amend.conftest import StandIn

DATES = [date(2024, 3, 5), None, date(2024, 3, 7)]


def test_list_is_a_table(stand_in: StandIn) -> None:
    stand_in.answer({"items": [MODEL], "next": None})
    heading, row = stand_in.run("models", "list").stdout.splitlines()
    assert heading.split()[:4] == ["name", "architecture", "target", "examples"]
    assert row.split() == ["churn", "linear", "binary", "900", "100", "1000", "3", "-", "-", *SHOWN]


def test_show_lists_every_value(stand_in: StandIn) -> None:
    stand_in.answer(MODEL)
    printed = stand_in.run("models", "show", "churn").stdout
    assert ["policy.adapt.after_changes", "100"] in [line.split() for line in printed.splitlines()]


def test_create_sends_only_the_given_options(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"kind": "vector", "dim": 2}')
    stand_in.answer(MODEL, status=201)
    result = stand_in.run(
        "models", "create", "churn", "--input", f"@{file}", "--target", "binary", "--policy", '{"holdout": 0.2}'
    )
    assert result.exit_code == 0
    assert stand_in.asked[0].json() == {
        "name": "churn",
        "input": {"kind": "vector", "dim": 2},
        "target": {"kind": "binary"},
        "policy": {"holdout": 0.2},
    }


def test_options_overrule_the_spec(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({"name": "old", "target": {"kind": "count"}, "input": {"kind": "vector", "dim": 2}}))
    stand_in.answer(MODEL, status=201)
    stand_in.run("models", "create", "churn", "--spec", str(file), "--target", "binary")
    assert stand_in.asked[0].json() == {
        "name": "churn",
        "target": {"kind": "binary"},
        "input": {"kind": "vector", "dim": 2},
    }


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_create_infers_input_and_target_from_a_file_and_prints_them(
    stand_in: StandIn, tmp_path: Path, suffix: str
) -> None:
    made = pa.table({"who": ["a", "b", "c"], "age": [1.5, None, 3.0], "since": DATES, "ok": [True, None, False]})
    made = made.append_column("left", pa.array(["yes", "no", "no"]))
    file = str(tmp_path / f"data.{suffix}")
    write = {
        "parquet": pyarrow.parquet.write_table,
        "csv": pyarrow.csv.write_csv,
        "arrow": pyarrow.feather.write_feather,
    }
    write[suffix](made, file)
    stand_in.answer(MODEL, status=201)
    more = ("--class-weight", '{"yes": 5}')
    result = stand_in.run("models", "create", "churn", "--from", file, "--target", "left", "--subject", "who", *more)
    assert stand_in.asked[0].json() == {
        "name": "churn",
        "input": {
            "kind": "table",
            "columns": [
                {"name": "age", "type": "number"},
                {"name": "since", "type": "date"},
                {"name": "ok", "type": "boolean"},
            ],
        },
        "target": {"kind": "classes", "values": ["no", "yes"]},
        "class_weight": {"yes": 5},
    }
    assert "target 'left': classes no, yes" in result.stderr.splitlines()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--from", "nowhere.parquet", "--target", "left"], "Cannot read nowhere.parquet"),
        (["--from", "data.xls", "--target", "left"], "Cannot infer the format of data.xls"),
        (["--from", "data.csv"], "Name the target column of the file with --target"),
        (["--from", "data.csv", "--target", "left", "--input", "text"], "Omit --input"),
        ([], "Give --from FILE and --target COLUMN, or --input and --target"),
        (["--input", "1,2", "--target", "binary"], "--input is neither JSON nor the name of a file"),
        (["--target", "binary", "--subject", "who"], "--id, --subject, --weight and --target-kind require --from"),
    ],
)
def test_an_unreadable_file_is_reported_in_one_line(stand_in: StandIn, options: list[str], told: str) -> None:
    result = stand_in.run("models", "create", "churn", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert told in result.stderr
    assert stand_in.asked == []


@pytest.mark.parametrize("policy", ["{broken", "@nowhere.json"])
def test_bad_json_is_reported_in_one_line_and_nothing_is_sent(policy: str, stand_in: StandIn) -> None:
    result = stand_in.run("models", "create", "churn", "--policy", policy)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert stand_in.asked == []


@pytest.mark.parametrize(("reply", "deleted"), [("y\n", True), ("n\n", False), ("", False)])
def test_delete_asks_for_confirmation(reply: str, deleted: bool, stand_in: StandIn) -> None:
    counts = {"train": 1000, "holdout": 200, "removed": 7, "quarantined": 34, "unlabelled": 0}
    stand_in.answer({**MODEL, "counts": counts}, b"", status=200)
    result = stand_in.run("models", "delete", "churn", stdin=reply)
    methods = [(asked.method, asked.path) for asked in stand_in.asked]
    assert methods == [("GET", "/v1/models/churn"), *[("DELETE", "/v1/models/churn")] * deleted]
    assert result.exit_code == (0 if deleted else 1)
    assert "Delete the model churn with its 1234 examples and all its versions?" in result.stderr
    assert ("Use --yes to skip the question." in result.stderr) == (reply == "")


def test_delete_with_yes_does_not_prompt(stand_in: StandIn) -> None:
    stand_in.answer(b"", status=204)
    assert stand_in.run("models", "delete", "churn", "--yes").exit_code == 0
    assert stand_in.asked[0].method == "DELETE"


def test_policy_is_shown_or_changed(stand_in: StandIn) -> None:
    stand_in.answer(MODEL)
    assert "adapt.after_changes" in stand_in.run("models", "policy", "churn").stdout
    stand_in.run("models", "policy", "churn", '{"adapt": {"after_changes": 50}}')
    assert [asked.method for asked in stand_in.asked] == ["GET", "PATCH"]
    assert stand_in.asked[1].json() == {"policy": {"adapt": {"after_changes": 50}}}


def test_change_sends_the_new_parts(stand_in: StandIn) -> None:
    stand_in.answer({"position": 1001, "job": None}, status=202)
    result = stand_in.run("models", "change", "churn", "--regularizer", '{"kind": "l2", "delta": 10}', "--wait")
    assert result.exit_code == 0
    assert stand_in.asked[0].path == "/v1/models/churn/changes"
    assert stand_in.asked[0].json() == {"regularizer": {"kind": "l2", "delta": 10}}


def test_change_sends_other_columns_and_classes(stand_in: StandIn) -> None:
    stand_in.answer({"position": 7, "job": None, "added": ["years"], "dropped": ["age"]}, status=202)
    columns, classes = '{"kind": "table", "columns": []}', '{"kind": "classes", "values": ["a", "b"]}'
    result = stand_in.run("models", "change", "churn", "--input", columns, "--target", classes)
    assert (result.exit_code, "Columns dropped: age; added: years." in result.stderr) == (0, True)
    sent = stand_in.asked[0].json()
    assert (sent["input"]["kind"], sent["target"]["values"]) == ("table", ["a", "b"])


def test_a_change_is_reverted_by_its_position(stand_in: StandIn) -> None:
    change = {"position": 7, "kind": "regularizer", "value": {"kind": "l2", "delta": 10.0}, "created_at": AT}
    page = {"items": [change], "next": None}
    stand_in.answer(page, page, {"position": 9, "job": None})
    assert "regularizer" in stand_in.run("models", "changes", "churn").stdout
    assert stand_in.run("models", "change", "churn", "--revert", "7").exit_code == 0
    assert stand_in.asked[2].json() == {"revert": 7}


def test_reverting_a_change_of_columns_asks_first(stand_in: StandIn) -> None:
    change = {"position": 7, "kind": "input", "value": {"kind": "table", "columns": []}, "created_at": AT}
    stand_in.answer({"items": [change], "next": None}, {"position": 9, "job": None})
    refused = stand_in.run("models", "change", "churn", "--revert", "7", stdin="n\n")
    assert (refused.exit_code, [asked.method for asked in stand_in.asked]) == (1, ["GET"])
    assert "The columns that it added are dropped." in refused.stderr
    assert stand_in.run("models", "change", "churn", "--revert", "7", "--yes").exit_code == 0
    assert stand_in.asked[1].json() == {"revert": 7}


def test_a_policy_that_removes_old_examples_asks_first(stand_in: StandIn) -> None:
    stand_in.answer(MODEL)
    asked = ("models", "policy", "churn", '{"expire": "365d"}')
    refused = stand_in.run(*asked, stdin="n\n")
    assert (refused.exit_code, stand_in.asked) == (1, [])
    assert "older than 365d?" in refused.stderr
    assert stand_in.run(*asked, "--yes").exit_code == 0


def test_columns_are_added_and_dropped_by_name(stand_in: StandIn) -> None:
    stand_in.answer({"position": 4, "job": None, "added": ["income"], "dropped": ["age"], "restored": ["income"]})
    column = '{"name": "income", "type": "number"}'
    asked = ("models", "change", "churn", "--add-column", column, "--drop-column", "age")
    refused = stand_in.run(*asked, stdin="n\n")
    assert (refused.exit_code, stand_in.asked) == (1, [])
    assert "Drop the column age of churn?" in refused.stderr
    changed = stand_in.run(*asked, "--yes")
    assert changed.exit_code == 0, changed.output
    assert "Columns restored with their values: income." in changed.stderr
    assert stand_in.asked[-1].json() == {"add_columns": [{"name": "income", "type": "number"}], "drop_columns": ["age"]}


def test_hold_and_resume_print_the_result(stand_in: StandIn) -> None:
    stand_in.answer({**MODEL, "held": held("held by hand")})
    assert stand_in.run("models", "hold", "churn").stdout == "churn is held. Reason: held by hand.\n"
    stand_in.answer({**MODEL, "held": None, "job": "j1"})
    assert (
        stand_in.run("models", "resume", "churn").stdout
        == "churn is no longer held. Job j1 processes the pending changes.\n"
    )
    stand_in.answer({**MODEL, "held": None, "job": None})
    assert stand_in.run("models", "resume", "churn", "--wait").stdout == "churn is no longer held. No work is due.\n"
    paths = [(asked.method, asked.path) for asked in stand_in.asked]
    assert paths == [("POST", f"/v1/models/churn/{what}") for what in ("hold", "resume", "resume")]


def test_the_list_shows_that_a_model_is_held(stand_in: StandIn) -> None:
    why = "version 3 was promoted by hand"
    stand_in.answer({"items": [{**MODEL, "held": held(why)}, {**MODEL, "held": None}], "next": None})
    assert why in stand_in.run("models", "list").stdout


def test_change_of_nothing_is_refused(stand_in: StandIn) -> None:
    assert stand_in.run("models", "change", "churn").exit_code == 1
    assert stand_in.asked == []
