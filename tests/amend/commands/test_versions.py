"""Versions, comparisons, predictions and keys: what is asked of the service and what is shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.amend.commands.responses import AT, MODEL, SHOWN, held, version
from tests.amend.conftest import StandIn


def test_weights_are_written_as_they_come(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer(b"\x00\xffweights")
    file = tmp_path / "w.safetensors"
    assert stand_in.run("versions", "weights", "churn", "7", "--output", str(file)).exit_code == 0
    assert file.read_bytes() == b"\x00\xffweights"
    assert stand_in.run("versions", "weights", "churn", "7", "--output", "-").stdout_bytes == b"\x00\xffweights"
    assert stand_in.asked[0].path == "/v1/models/churn/versions/7/weights"


def test_an_onnx_file_is_streamed_to_the_file(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer(b"\x08\x08onnx")
    file = tmp_path / "churn.onnx"
    assert stand_in.run("versions", "export", "churn", "7", "--onnx", str(file)).exit_code == 0
    assert file.read_bytes() == b"\x08\x08onnx"
    assert stand_in.asked[0].path == "/v1/models/churn/versions/7/onnx"
    assert stand_in.run("versions", "export", "churn", "7").exit_code == 2


def test_coefficients_are_listed_by_name(stand_in: StandIn) -> None:
    age: dict[str, Any] = {"feature": "age", "class": None, "coefficient": 0.02, "standardised": 0.32}
    stand_in.answer({"items": [age], "next": None}, {"items": [{**age, "class": "no"}], "next": None})
    printed = stand_in.run("versions", "coefficients", "churn", "7").stdout
    assert printed.split() == ["feature", "coefficient", "standardised", "age", "0.02", "0.32"]
    assert stand_in.asked[0].path == "/v1/models/churn/versions/7/coefficients"
    assert "no" in stand_in.run("versions", "coefficients", "churn", "7").stdout.split()


def test_discard_asks_with_the_number_of_this_versions_examples(stand_in: StandIn) -> None:
    stand_in.answer({**version(7), "quarantined": 12})
    asked = stand_in.run("versions", "discard", "churn", "7", stdin="n\n")
    assert "Remove the 12 quarantined examples of version 7 of churn?" in asked.stderr
    assert (asked.exit_code, [one.path for one in stand_in.asked]) == (1, ["/v1/models/churn/versions/7"])


def test_the_champion_can_be_named(stand_in: StandIn) -> None:
    led = {**MODEL, "champion": 7}
    stand_in.answer(led, b"weights", led, version(7), MODEL)
    assert stand_in.run("versions", "weights", "churn", "champion", "--output", "-").stdout_bytes == b"weights"
    assert stand_in.run("versions", "show", "churn", "champion").exit_code == 0
    asked = [
        "/v1/models/churn",
        "/v1/models/churn/versions/7/weights",
        "/v1/models/churn",
        "/v1/models/churn/versions/7",
    ]
    assert [one.path for one in stand_in.asked] == asked
    assert "churn has no champion yet" in stand_in.run("versions", "show", "churn", "champion").stderr
    stand_in.answer({**MODEL, "withdrawn": True})
    assert "churn was withdrawn" in stand_in.run("versions", "show", "churn", "champion").stderr
    for wrong in ("0", "best", "-1"):
        assert stand_in.run("versions", "show", "churn", wrong).exit_code == 2


def test_promote_sends_a_request(stand_in: StandIn) -> None:
    stand_in.answer(version(6))
    result = stand_in.run("versions", "promote", "churn", "6")
    assert result.stdout == "Version 6 is the champion of churn.\n"
    assert (stand_in.asked[0].method, stand_in.asked[0].path) == ("POST", "/v1/models/churn/versions/6/promote")


def test_a_rollback_reports_that_the_model_is_held(stand_in: StandIn) -> None:
    stand_in.answer(version(6, held=held("version 6 was promoted by hand")))
    result = stand_in.run("versions", "promote", "churn", "6")
    assert "The model is held. To resume automatic work: amend models resume churn" in result.stdout


def test_promoting_a_purged_version_reports_the_job(stand_in: StandIn) -> None:
    stand_in.answer(version(6, state="purged", job="j1"))
    result = stand_in.run("versions", "promote", "churn", "6")
    shown = "Version 6 was purged. The job j1 trains a new version at position 9 and promotes it.\n"
    assert result.stdout == shown


COMPARED: dict[str, Any] = {
    "a": {"version": 6, "kind": "adapted", "method": "kprior", "position": 900, "state": "superseded", "spec": {}},
    "b": {"version": 7, "kind": "trained", "method": "retrain", "position": 950, "state": "champion", "spec": {}},
    "differences": [{"field": "regularizer.delta", "a": 5.0, "b": 10.0}],
    "rows": 1000,
    "metrics": {"accuracy": {"a": 0.91, "b": 0.93, "difference_se": 0.004}},
    "disagreement": 0.03,
    "disagreement_se": 0.005,
    "largest_change": 0.41,
    "weight_distance": 0.2,
    "coefficients": [
        {"feature": "plan = paid", "class": None, "a": 0.5, "b": 0.75},
        {"feature": "age", "class": "b", "a": None, "b": -1.25},
        {"feature": "debt", "class": None, "a": 0.333331, "b": 0.333332},
    ],
    "coefficients_total": 70,
}


def test_two_versions_are_shown_side_by_side(stand_in: StandIn) -> None:
    stand_in.answer(COMPARED)
    result = stand_in.run("versions", "compare", "churn", "6", "7")
    assert result.exit_code == 0, result.output
    assert stand_in.asked[0].path == "/v1/models/churn/versions/6/compare/7"
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["version", "6", "version", "7"]
    assert ["regularizer.delta", "5", "10"] in lines
    assert ["accuracy", "0.91", "0.93"] in lines
    assert ["coefficient", "of", "plan", "=", "paid", "0.5", "0.75"] in lines
    assert ["coefficient", "of", "age", "(class", "b)", "-", "-1.25"] in lines
    assert "debt" not in result.stdout
    assert "On 1000 holdout examples: disagreement 0.03 (standard error 0.005)" in result.stdout
    assert "largest difference between predictions 0.41. Shown are the 2 of 70 coefficients" in result.stdout
    as_json = stand_in.run("versions", "compare", "churn", "6", "7", "--json")
    assert json.loads(as_json.stdout) == COMPARED
    stand_in.answer({**COMPARED, "coefficients": COMPARED["coefficients"][2:]})
    assert "No coefficient differs" in stand_in.run("versions", "compare", "churn", "6", "7").stdout


def test_a_version_is_compared_with_the_champion(stand_in: StandIn) -> None:
    stand_in.answer({**MODEL, "champion": 7}, COMPARED)
    result = stand_in.run("versions", "compare", "churn", "6", "champion")
    assert result.stdout.split()[:4] == ["version", "6", "version", "7"]
    assert stand_in.asked[1].path == "/v1/models/churn/versions/6/compare/7"
    assert "OTHER" in stand_in.run("versions", "compare", "churn", "6", "best").stderr


def test_without_holdout_and_coefficients_the_rest_is_shown(stand_in: StandIn) -> None:
    stand_in.answer({**COMPARED, "rows": 0, "metrics": {}, "coefficients": None, "coefficients_total": None})
    printed = stand_in.run("versions", "compare", "churn", "6", "7").stdout
    assert "There are no holdout examples" in printed
    columns = {"field": "input.columns", "a": [], "b": []}
    stand_in.answer({**COMPARED, "rows": 0, "differences": [columns]})
    assert "The versions have different columns" in stand_in.run("versions", "compare", "churn", "6", "7").stdout
    assert "regularizer.delta" in printed


def test_versions_without_a_bound_are_listed(stand_in: StandIn) -> None:
    bound = version(2, certificate={"kind": "bound", "relative": 0.00041})
    stand_in.answer({"items": [version(1, kind="trained"), bound], "next": None})
    result = stand_in.run("versions", "list", "churn")
    assert result.exit_code == 0
    assert "0.00041" in result.stdout


def test_losses_of_several_kinds_are_listed_with_them(stand_in: StandIn) -> None:
    losses: list[dict[str, Any]] = [{"kind": "squared"}, {"kind": "huber", "threshold": 1.35}]
    listed = [version(i, metrics={"loss": 0.5}, spec={"loss": loss}) for i, loss in enumerate(losses, 1)]
    stand_in.answer({"items": listed, "next": None}, {"items": listed[:1], "next": None})
    several = stand_in.run("versions", "list", "churn").stdout
    assert "kind of loss" in several
    assert "huber 1.35" in several
    assert "kind of loss" not in stand_in.run("versions", "list", "churn").stdout


def test_comparisons_show_both_figures(stand_in: StandIn) -> None:
    item = {"position": 9, "adapted": 2, "retrained": 3, "accuracy": {"adapted": 0.95, "retrained": 0.96}}
    stand_in.answer({"items": [item | {"within_tolerance": True, "created_at": AT}], "next": None})
    printed = stand_in.run("comparisons", "list", "churn").stdout
    assert "0.95 / 0.96" in printed
    assert "yes" in printed


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("[[1, 2], [3, 4]]", {"inputs": [[1, 2], [3, 4]]}),
        ("[1.5, 2]", {"inputs": [[1.5, 2]]}),
        ('{"age": 39}', {"inputs": [{"age": 39}]}),
        ('{"inputs": [[1]], "version": 2}', {"inputs": [[1]], "version": 2}),
    ],
)
def test_predict_takes_one_input_or_many(given: str, sent: dict[str, Any], stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer({"version": 7, "outputs": [{"mean": 0.93, "class": 1}]})
    (tmp_path / "inputs.json").write_text(given)
    for argument in (given, str(tmp_path / "inputs.json")):
        result = stand_in.run("predict", "churn", argument)
        assert result.stdout.splitlines()[1].split() == ["1", "0.93", "1"]
    assert stand_in.run("predict", "churn", "-", stdin=given).exit_code == 0
    assert [asked.json() for asked in stand_in.asked] == [sent] * 3


def test_a_file_that_is_not_json_is_reported(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "two.txt"
    file.write_text("age,plan\n39,paid\n")
    result = stand_in.run("predict", "churn", str(file))
    assert (result.exit_code, stand_in.asked) == (1, [])
    assert f"The input must be JSON, but {file} is not" in result.stderr


def test_predict_with_a_version(stand_in: StandIn) -> None:
    stand_in.answer({"version": 3, "outputs": []})
    stand_in.run("predict", "churn", "[[1]]", "--version", "3")
    assert stand_in.asked[0].json() == {"inputs": [[1]], "version": 3}


def test_predict_prints_the_uncertainty(stand_in: StandIn) -> None:
    stand_in.answer({"version": 3, "outputs": [{"mean": 0.5, "std": 0.125, "interval": [0.250000123, 0.75]}]})
    shown = stand_in.run("predict", "churn", "[[1]]", "--uncertainty").stdout
    assert stand_in.asked[0].json() == {"inputs": [[1]], "uncertainty": True}
    assert shown.splitlines()[1].split() == ["1", "0.5", "0.125", "[0.25,", "0.75]"]


def test_predict_explains_the_rows_of_a_file(stand_in: StandIn, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age\n39\n")
    model = {**MODEL, "input": {"kind": "table", "columns": [{"name": "age", "type": "number"}]}}
    predicted = {"version": 3, "outputs": [{"mean": 0.5, "contributions": {"age": 0.25, "(intercept)": -0.25}}]}
    stand_in.answer(model, predicted)
    shown = stand_in.run("predict", "churn", str(tmp_path / "rows.csv"), "--explain", "--json")
    assert stand_in.asked[-1].json()["explain"] is True
    assert json.loads(shown.stdout)["outputs"][0]["contributions"] == {"age": 0.25, "(intercept)": -0.25}


def test_promotions_are_listed(stand_in: StandIn) -> None:
    stand_in.answer({"items": [{"version": 2, "previous": 1, "by": "policy", "created_at": AT}], "next": None})
    shown = stand_in.run("versions", "promotions", "churn")
    assert shown.stdout.splitlines()[1].split() == ["2", "1", "policy", *SHOWN]
    assert stand_in.asked[0].path == "/v1/models/churn/promotions"


KEY = {
    "id": "k2",
    "name": "pipeline",
    "person": False,
    "quota": None,
    "scopes": ["read", "ingest"],
    "models": ["churn"],
}
KEY |= {"created_at": AT, "last_used_at": None, "expires_at": None}


def test_a_key_may_expire(stand_in: StandIn) -> None:
    stand_in.answer(KEY | {"key": "amend_k2_secret"})
    stand_in.run("keys", "create", "pipeline", "--scope", "read", "--expires", "90d")
    left = datetime.fromisoformat(stand_in.asked[0].json()["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)
    refused = stand_in.run("keys", "create", "pipeline", "--scope", "read", "--expires", "soon")
    assert (refused.exit_code, len(stand_in.asked)) == (2, 1)
    assert "Expected 12h, 90d" in refused.stderr


def test_a_new_key_is_shown_and_the_old_ones_listed(stand_in: StandIn) -> None:
    stand_in.answer(KEY | {"key": "amend_k2_secret"}, {"items": [KEY | {"models": None}], "next": None})
    created = stand_in.run("keys", "create", "pipeline", "--scope", "read", "--scope", "ingest", "--model", "churn")
    assert stand_in.asked[0].json() == {"name": "pipeline", "scopes": ["read", "ingest"], "models": ["churn"]}
    assert "amend_k2_secret" in created.stdout
    assert "all" in stand_in.run("keys", "list").stdout.split()


def test_revoking_a_key_asks(stand_in: StandIn) -> None:
    stand_in.answer(b"", status=204)
    assert stand_in.run("keys", "revoke", "k2", stdin="n\n").exit_code == 1
    assert stand_in.asked == []
    assert stand_in.run("keys", "revoke", "k2", "--yes").exit_code == 0
    assert (stand_in.asked[0].method, stand_in.asked[0].path) == ("DELETE", "/v1/keys/k2")


WEBHOOK = {"id": "w1", "url": "https://example.com/", "events": None, "failing_since": None, "created_at": AT}
WEBHOOK |= {"disabled_at": AT, "disabled_reason": "Failed for 3 days. The receiver returned 500."}
DELIVERY = {"id": "msg_1", "type": "ping", "state": "pending", "attempts": 0, "status": None, "error": None}
DELIVERY |= {"next_attempt_at": AT, "delivered_at": None, "created_at": AT}


def test_a_webhook_is_made_and_listed_with_why_it_is_disabled(stand_in: StandIn) -> None:
    stand_in.answer(WEBHOOK | {"secret": "whsec_x"}, {"items": [WEBHOOK], "next": None})
    created = stand_in.run("webhooks", "create", "https://example.com/", "--event", "job.failed")
    assert stand_in.asked[0].json() == {"url": "https://example.com/", "events": ["job.failed"]}
    assert "whsec_x" in created.stdout
    assert "Failed for 3 days" in " ".join(stand_in.run("webhooks", "list").stdout.split())


def test_a_failed_ping_is_reported_with_its_reason(stand_in: StandIn) -> None:
    failed = DELIVERY | {"state": "given_up", "error": "The receiver returned 500."}
    stand_in.answer(DELIVERY, {"items": [failed], "next": None})
    tested = stand_in.run("webhooks", "test", "w1")
    assert (tested.exit_code, tested.stderr) == (1, "amend: The delivery failed: The receiver returned 500.\n")
    assert [call.path for call in stand_in.asked] == ["/v1/webhooks/w1/test", "/v1/webhooks/w1/deliveries"]
