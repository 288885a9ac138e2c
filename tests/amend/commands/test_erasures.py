"""``amend erasures`` and ``amend receipts``: what is asked of the service, what is shown, and what fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amend.commands import erasures
from tests.amend.commands.responses import AT, erasure, part
from tests.amend.conftest import StandIn


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "POLL_SECONDS", 0.0)


def test_ask_sends_only_the_given_options(stand_in: StandIn) -> None:
    stand_in.answer(erasure("received", part()), status=202)
    assert stand_in.run("erasures", "ask", "user-7", "--yes").exit_code == 0
    more = ("--alias", "u7", "--alias", "User 7", "--reason", "by mail", "--received-at", "2026-03-01T09:00:00Z")
    result = stand_in.run("erasures", "ask", "user-7", "--yes", *more)
    assert [asked.json() for asked in stand_in.asked] == [
        {"subject": "user-7"},
        {"subject": "user-7", "subjects": ["u7", "User 7"], "reason": "by mail", "received_at": "2026-03-01T09:00:00Z"},
    ]
    assert (stand_in.asked[0].method, stand_in.asked[0].path) == ("POST", "/v1/erasures")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["id", "e1"]
    assert lines[-1].split() == ["churn", "received", "3", "-", "-", "-", "-"]


def test_wait_prints_each_state_once_and_the_result(stand_in: StandIn) -> None:
    done = erasure("completed", part("completed", method="adapted", version=7, bound=0.0012), receipt="/v1/...")
    adapting = erasure("adapting", part("adapting"))
    stand_in.answer(erasure("received", part()), adapting, adapting, erasure("purging", part("purging")), done)
    result = stand_in.run("erasures", "ask", "user-7", "--yes", "--wait")
    assert result.exit_code == 0
    assert [line.partition(",")[0] for line in result.stderr.splitlines()] == [
        "received",
        "adapting",
        "purging",
        "completed",
    ]
    assert [asked.path for asked in stand_in.asked] == ["/v1/erasures", *["/v1/erasures/e1"] * 4]
    assert "0.0012" in result.stdout


def test_wait_fails_with_the_reason_of_each_model(stand_in: StandIn) -> None:
    failed = part("failed", error={"code": "solver_failed", "detail": "no luck"})
    stand_in.answer(erasure("failed", part("completed"), failed))
    result = stand_in.run("erasures", "ask", "user-7", "--yes", "--wait", "--json")
    assert result.exit_code == 1
    assert "amend: Erasure e1 failed; churn: solver_failed: no luck\n" in result.stderr
    assert json.loads(result.stdout)["state"] == "failed"


def test_wait_fails_if_it_is_refused_meanwhile(stand_in: StandIn) -> None:
    stand_in.answer(erasure(), erasure("refused", refusal="kept by law"))
    assert stand_in.run("erasures", "ask", "user-7", "--yes", "--wait").exit_code == 1


def test_an_unmatched_erasure_is_not_waited_for(stand_in: StandIn) -> None:
    stand_in.answer(erasure("unmatched"))
    result = stand_in.run("erasures", "ask", "user-7", "--yes", "--wait")
    assert (result.exit_code, len(stand_in.asked)) == (1, 1)
    assert result.stderr.splitlines()[-1] == "amend: Erasure e1 matched no example and waits for a decision"


def test_a_held_erasure_is_not_waited_for(stand_in: StandIn) -> None:
    stand_in.answer(erasure("held", part("held")))
    result = stand_in.run("erasures", "ask", "user-7", "--yes", "--hold", "--wait")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "amend: Erasure e1 is held until it is approved"
    assert len(stand_in.asked) == 1


def test_list_passes_the_filters_on_and_counts(stand_in: StandIn) -> None:
    stand_in.answer({"items": [erasure("failed", part(), part(model="loans"), overdue=True)], "next": "e1"})
    result = stand_in.run("erasures", "list", "--state", "failed", "--overdue", "--limit", "1")
    assert stand_in.asked[0].path == "/v1/erasures?state=failed&overdue=true&limit=1"
    row = result.stdout.splitlines()[1].split()
    assert row == ["e1", "failed", "2026-03-01", "09:00Z", "2026-04-01", "09:00Z", "yes", "-", "2", "6"]
    assert "--after e1" in result.stderr
    stand_in.run("erasures", "list")
    assert stand_in.asked[1].path == "/v1/erasures"


def test_show_prints_why_a_model_failed(stand_in: StandIn) -> None:
    stand_in.answer(erasure("failed", part("failed", error={"code": "solver_failed", "detail": "no luck"})))
    result = stand_in.run("erasures", "show", "e1")
    assert stand_in.asked[0].path == "/v1/erasures/e1"
    assert "solver_failed: no luck" in result.stdout


def test_one_or_all_failed_erasures_are_retried(stand_in: StandIn) -> None:
    stand_in.answer(erasure(), {"retried": ["e1", "e2"]})
    assert stand_in.run("erasures", "retry", "e1").exit_code == 0
    assert stand_in.run("erasures", "retry").stdout == "Retrying 2 erasures.\n"
    assert [asked.path for asked in stand_in.asked] == ["/v1/erasures/e1/retry", "/v1/erasures/retry"]


@pytest.mark.parametrize("act", ["refuse", "extend"])
def test_refusing_and_extending_need_a_reason(act: str, stand_in: StandIn) -> None:
    stand_in.answer(erasure("refused" if act == "refuse" else "received"))
    assert stand_in.run("erasures", act, "e1").exit_code == 2
    assert stand_in.run("erasures", act, "e1", "--reason", "many").exit_code == 0
    [asked] = stand_in.asked
    assert (asked.path, asked.json()) == (f"/v1/erasures/e1/{act}", {"reason": "many"})


def test_a_receipt_is_json_or_a_page(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer({"number": 1}, b"<!doctype html>", b"<!doctype html>")
    assert json.loads(stand_in.run("erasures", "receipt", "e1").stdout) == {"number": 1}
    file = tmp_path / "receipt.html"
    assert stand_in.run("erasures", "receipt", "e1", "--html", str(file)).exit_code == 0
    assert file.read_bytes() == b"<!doctype html>"
    assert stand_in.run("erasures", "receipt", "e1", "--html", "-").stdout == "<!doctype html>"
    assert [asked.headers["Accept"] for asked in stand_in.asked] == ["application/json", "text/html", "text/html"]
    assert {asked.path for asked in stand_in.asked} == {"/v1/erasures/e1/receipt"}
    assert stand_in.run("erasures", "receipt", "e1", "--html", str(tmp_path)).exit_code == 1


def test_a_receipt_is_printed_with_the_identifiers_as_spelt(stand_in: StandIn) -> None:
    stand_in.answer(b"<!doctype html>")
    result = stand_in.run("erasures", "receipt", "e1", "--html", "-", "--subject", "user-7", "--subject", "U 7")
    [asked] = stand_in.asked
    assert (asked.method, asked.path) == ("POST", "/v1/erasures/e1/receipt")
    assert asked.json() == {"subjects": ["user-7", "U 7"]}
    assert result.stdout == "<!doctype html>"


def test_notices_are_printed_one_after_the_other(stand_in: StandIn) -> None:
    notice = {"key": "k1", "name": "analyst", "copies": [], "text": "Please delete them.\n"}
    stand_in.answer({"items": [notice, {**notice, "key": "k2", "name": None}]}, {"items": []})
    shown = stand_in.run("erasures", "notices", "e1").stdout
    assert shown.count("Please delete them.") == 2
    assert [line for line in shown.splitlines() if line.startswith("To")] == [
        "To the holder of the API key analyst",
        "To the holder of the API key k2",
    ]
    assert "nobody to notify" in stand_in.run("erasures", "notices", "e1").stdout


def test_a_request_names_similar_spellings_that_it_does_not_include(stand_in: StandIn) -> None:
    stand_in.answer(erasure("unmatched", near_matches=[{"subject": "User-7", "examples": 2}]), status=202)
    result = stand_in.run("erasures", "ask", "user-7", "--yes")
    assert "Not included: 'User-7' (examples: 2). To add them: --alias" in result.stderr


NOTHING = {"receipts": 0, "erasures": [], "requests": [], "removals": 0, "corrections": 0, "outdated": 0, "models": []}


def test_replay_prints_what_was_repeated(stand_in: StandIn) -> None:
    stand_in.answer({**NOTHING, "receipts": 3, "erasures": ["e9"], "strays": ["register/notes.txt"]})
    printed = stand_in.run("erasures", "replay").stdout
    assert printed == (
        "Replayed: 3 receipts restored, 1 erasures repeated.\nIgnored a stray file in the store: register/notes.txt\n"
    )
    assert stand_in.asked[0].path == "/v1/erasures/replay"
    stand_in.answer({**NOTHING, "strays": []})
    assert stand_in.run("erasures", "replay").stdout == "Replayed: nothing was missing.\n"


HEAD = {"size": 4, "root": "ab12", "time": AT, "signature": "c2ln", "key_id": "0123"}


def test_a_valid_register_is_reported_with_its_root(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer({"valid": True, "receipts": 2, "leaves": 4, "head": HEAD, "flaws": [], "strays": []})
    result = stand_in.run("receipts", "verify")
    assert (result.exit_code, result.stdout) == (0, "The register is valid: 2 receipts, 4 leaves, root ab12.\n")
    file = tmp_path / "head.json"
    stand_in.answer(HEAD)
    assert stand_in.run("register", "head", "--to", str(file)).exit_code == 0
    assert json.loads(file.read_bytes()) == HEAD
    stand_in.answer({"valid": True, "receipts": 2, "leaves": 4, "head": HEAD, "flaws": [], "strays": []})
    assert stand_in.run("receipts", "verify", "--head", str(file)).exit_code == 0
    assert stand_in.asked[-1].path == "/v1/receipts/verify?size=4&root=ab12"
    file.write_text("[]")
    result = stand_in.run("receipts", "verify", "--head", str(file))
    assert (result.exit_code, result.stderr) == (1, f"amend: {file} is not a signed head in JSON.\n")


def test_a_forged_register_fails_the_command_and_lists_the_flaws(stand_in: StandIn) -> None:
    flaws = [{"leaf": 2, "receipt": 7, "problem": "altered"}, {"leaf": None, "receipt": None, "problem": "missing"}]
    stand_in.answer({"valid": False, "receipts": 6, "leaves": 12, "head": HEAD, "flaws": flaws, "strays": []})
    result = stand_in.run("receipts", "verify")
    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["leaf", "receipt", "problem"],
        ["2", "7", "altered"],
        ["-", "-", "missing"],
    ]
    assert result.stderr == "amend: The register of 6 receipts, 12 leaves is not valid.\n"
    as_json = stand_in.run("receipts", "verify", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["flaws"]) == (1, flaws)


def test_evidence_is_listed_and_downloaded(stand_in: StandIn, tmp_path: Path) -> None:
    item = {"number": 7, "erasure": "e1", "leaf": 2, "sha256": "ab", "key_id": "01", "completed_at": AT}
    stand_in.answer({"items": [item], "next": None}, b"PK", {"key_id": "01"})
    assert stand_in.run("receipts", "list").stdout.splitlines()[1].split()[:2] == ["7", "e1"]
    file = tmp_path / "evidence.zip"
    assert stand_in.run("erasures", "bundle", "e1", "--to", str(file), "--rows", "--from", "3").exit_code == 0
    assert file.read_bytes() == b"PK"
    assert stand_in.asked[-1].path == "/v1/erasures/e1/bundle?rows=true&from=3"
    assert json.loads(stand_in.run("register", "key").stdout) == {"key_id": "01"}


def test_a_request_is_held_approved_and_refused_with_a_letter(stand_in: StandIn, tmp_path: Path) -> None:
    trail = [{"action": "filed", "by": "k1", "at": "2026-03-01T09:00:00Z"}]
    held = erasure("held", part("held"), trail=trail)
    refused = {"erasure": "e1", "received_at": AT, "refused_at": AT, "late": False, "reason": "no", "examples": 3}
    refused |= {"rights": "to complain", "in_use": ["churn"], "outcome": "Used again."}
    stand_in.answer(held, held, erasure("received"), refused, b"<!doctype html>")
    shown = stand_in.run("erasures", "ask", "user-7", "--yes", "--hold").stdout
    assert ["filed", "k1"] in [line.split()[:2] for line in shown.splitlines()]
    assert stand_in.run("erasures", "ask", "user-7", "--yes", "--no-hold").exit_code == 0
    assert stand_in.run("erasures", "approve", "e1", "--yes").exit_code == 0
    assert json.loads(stand_in.run("erasures", "refusal", "e1").stdout) == refused
    letter = tmp_path / "letter.html"
    assert stand_in.run("erasures", "refusal", "e1", "--html", str(letter)).exit_code == 0
    assert letter.read_bytes() == b"<!doctype html>"
    assert [asked.json()["hold"] for asked in stand_in.asked[:2]] == [True, False]
    assert [asked.path for asked in stand_in.asked[2:4]] == ["/v1/erasures/e1/approve", "/v1/erasures/e1/refusal"]


def test_a_late_erasure_is_marked_in_the_list(stand_in: StandIn) -> None:
    late = erasure("completed", completed_at="2026-04-02T09:00:00Z", late=True)
    in_time = erasure("completed", completed_at="2026-03-02T09:00:00Z", late=False)
    stand_in.answer({"items": [late, in_time], "next": None}, late)
    first, second = stand_in.run("erasures", "list").stdout.splitlines()[1:]
    assert "2026-04-02 09:00Z, late" in first
    assert "late" not in second
    assert ["late", "yes"] in [line.split() for line in stand_in.run("erasures", "show", "e1").stdout.splitlines()]


def test_an_erasure_asks_before_it_erases(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer({"models": [{"model": "churn", "examples": 3}], "near_matches": []})
    refused = stand_in.run("erasures", "ask", "user-7", stdin="n\n")
    assert (refused.exit_code, stand_in.asked[-1].path) == (1, "/v1/subjects/lookup")
    assert "Erase the examples of user-7 (3 in churn)? This cannot be undone." in refused.stderr
    (tmp_path / "people.txt").write_text("user-7\nuser-8\n")
    before = len(stand_in.asked)
    refused = stand_in.run("erasures", "file", str(tmp_path / "people.txt"))
    assert (refused.exit_code, len(stand_in.asked)) == (1, before)
    assert "Erase the examples of 2 people from all models?" in refused.stderr
    assert "Use --yes" in refused.stderr
    stand_in.answer(erasure("held"))
    assert stand_in.run("erasures", "approve", "e1", stdin="n\n").exit_code == 1
    assert stand_in.asked[-1].method == "GET"


def test_people_in_a_file_are_filed_at_once(stand_in: StandIn) -> None:
    stand_in.answer({"items": [erasure("held"), erasure("held")]}, status=202)
    result = stand_in.run("erasures", "file", "-", "--hold", stdin="user-7\n\nuser 8 \n")
    assert result.exit_code == 0, result.stderr
    [asked] = stand_in.asked
    people = [{"subject": "user-7", "hold": True}, {"subject": "user 8", "hold": True}]
    assert (asked.path, asked.json()) == ("/v1/erasures/batch", {"requests": people})
    assert len(result.stdout.splitlines()) == 3


def test_people_in_a_file_of_another_encoding_are_not_guessed(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "people.txt"
    file.write_bytes("Jürgen\n".encode("latin-1"))
    result = stand_in.run("erasures", "file", str(file))
    assert (result.exit_code, stand_in.asked) == (1, [])
    assert "not encoded in UTF-8" in result.stderr


def test_a_person_is_looked_up_and_their_examples_written(stand_in: StandIn, tmp_path: Path) -> None:
    found = {"models": [{"model": "churn", "examples": 3}], "near_matches": [{"subject": "User-7", "examples": 1}]}
    nothing: dict[str, Any] = {"models": [], "near_matches": []}
    stand_in.answer(found, found, nothing, b'{"id": "a"}\n', b'{"id": "a"}\n')
    shown = stand_in.run("subjects", "lookup", "user-7")
    assert shown.stdout.splitlines()[-1].split() == ["churn", "3"]
    assert shown.stderr == "Similar spellings with examples: 'User-7' (examples: 1).\n"
    assert json.loads(stand_in.run("subjects", "lookup", "user-7", "--json").stdout) == found
    assert stand_in.run("subjects", "lookup", "user-7").stdout == "No model has examples with this identifier.\n"
    assert stand_in.run("subjects", "export", "user-7").stdout == '{"id": "a"}\n'
    file = tmp_path / "user-7.ndjson"
    assert stand_in.run("subjects", "export", "user-7", "--output", str(file)).exit_code == 0
    assert file.read_bytes() == b'{"id": "a"}\n'
    assert {asked.path for asked in stand_in.asked} == {"/v1/subjects/lookup", "/v1/subjects/export"}
    assert all(asked.json() == {"subject": "user-7"} for asked in stand_in.asked)


def test_a_csv_file_of_requests_has_dates_references_and_aliases(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer({"items": []}, status=202)
    file = tmp_path / "people.csv"
    file.write_text("subject,aliases,received,reference\nuser-7,u7|anna,2026-03-01,R-1\nuser-8,,,\n")
    assert stand_in.run("erasures", "file", str(file), "--yes").exit_code == 0
    first = {"subject": "user-7", "subjects": ["u7", "anna"], "received_at": "2026-03-01", "reference": "R-1"}
    assert stand_in.asked[0].json() == {"requests": [first, {"subject": "user-8"}]}
    file.write_text("subject,name\nuser-7,Anna\n")
    result = stand_in.run("erasures", "file", str(file), "--yes")
    assert result.exit_code == 1
    assert "unknown column name" in result.stderr


def test_decisions_and_letters_use_their_endpoints(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answer(erasure("held", part("held")))
    for command in ("hold", "withdraw"):
        assert stand_in.run("erasures", command, "e1").exit_code == 0
        assert (stand_in.asked[-1].method, stand_in.asked[-1].path) == ("POST", f"/v1/erasures/e1/{command}")
    letter = tmp_path / "letter.html"
    assert stand_in.run("erasures", "letter", "e1", "confirmation", "--html", str(letter)).exit_code == 0
    assert stand_in.asked[-1].path == "/v1/erasures/e1/letters/confirmation"
    assert letter.exists()
