"""``amend erasures`` and ``amend receipts``: what is asked of the service, what is shown, and what fails."""

from __future__ import annotations

import json
from pathlib import Path

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
    more = ("--reason", "by mail", "--received-at", "2026-03-01T09:00:00Z")
    result = stand_in.run("erasures", "ask", "user-7", "--yes", *more)
    assert [asked.json() for asked in stand_in.asked] == [
        {"subject": "user-7"},
        {"subject": "user-7", "reason": "by mail", "received_at": "2026-03-01T09:00:00Z"},
    ]
    assert (stand_in.asked[0].method, stand_in.asked[0].path) == ("POST", "/v1/erasures")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["id", "e1"]
    assert lines[-1].split() == ["churn", "received", "3", "-", "-", "-", "-"]


def test_wait_tells_each_state_once_and_shows_the_end(stand_in: StandIn) -> None:
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


def test_show_tells_why_a_model_failed(stand_in: StandIn) -> None:
    stand_in.answer(erasure("failed", part("failed", error={"code": "solver_failed", "detail": "no luck"})))
    result = stand_in.run("erasures", "show", "e1")
    assert stand_in.asked[0].path == "/v1/erasures/e1"
    assert "solver_failed: no luck" in result.stdout


def test_retry_takes_one_or_all(stand_in: StandIn) -> None:
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


def test_replay_prints_the_number_of_missing_receipts(stand_in: StandIn) -> None:
    stand_in.answer({"receipts": 3, "erasures": ["e9"]})
    printed = stand_in.run("erasures", "replay").stdout
    assert printed == "Receipts missing from the database: 3. Repeating 1 erasure.\n"
    assert stand_in.asked[0].path == "/v1/erasures/replay"


def test_a_valid_chain_is_reported_with_its_last_hash(stand_in: StandIn) -> None:
    stand_in.answer({"valid": True, "receipts": 2, "last": "ab12", "flaws": []})
    result = stand_in.run("receipts", "verify")
    assert (result.exit_code, result.stdout) == (0, "The chain is valid: 2 receipts; hash of the last: ab12.\n")
    stand_in.answer({"valid": True, "receipts": 0, "last": None, "flaws": []})
    assert stand_in.run("receipts", "verify").stdout == "The chain is valid: 0 receipts.\n"


def test_a_broken_chain_fails_the_command_and_lists_the_flaws(stand_in: StandIn) -> None:
    flaws = [{"number": 2, "problem": "altered"}, {"number": 5, "problem": "missing"}]
    stand_in.answer({"valid": False, "receipts": 6, "last": "ab12", "flaws": flaws})
    result = stand_in.run("receipts", "verify")
    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["receipt", "problem"],
        ["2", "altered"],
        ["5", "missing"],
    ]
    assert result.stderr == "amend: The chain of 6 receipts is not valid.\n"
    as_json = stand_in.run("receipts", "verify", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["flaws"]) == (1, flaws)


def test_a_request_is_held_approved_and_refused_with_a_letter(stand_in: StandIn, tmp_path: Path) -> None:
    trail = [{"action": "filed", "by": "k1", "at": "2026-03-01T09:00:00Z"}]
    held = erasure("held", part("held"), trail=trail)
    refused = {"erasure": "e1", "received_at": AT, "refused_at": AT, "late": False, "reason": "no", "examples": 3}
    refused["rights"] = "to complain"
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
    stand_in.answer({"models": [{"model": "churn", "examples": 3}]})
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
    found = {"models": [{"model": "churn", "examples": 3}]}
    stand_in.answer(found, found, {"models": []}, b'{"id": "a"}\n', b'{"id": "a"}\n')
    assert stand_in.run("subjects", "lookup", "user-7").stdout.splitlines()[-1].split() == ["churn", "3"]
    assert json.loads(stand_in.run("subjects", "lookup", "user-7", "--json").stdout) == found
    assert stand_in.run("subjects", "lookup", "user-7").stdout == "No model has examples of this person.\n"
    assert stand_in.run("subjects", "export", "user-7").stdout == '{"id": "a"}\n'
    file = tmp_path / "user-7.ndjson"
    assert stand_in.run("subjects", "export", "user-7", "--output", str(file)).exit_code == 0
    assert file.read_bytes() == b'{"id": "a"}\n'
    assert {asked.path for asked in stand_in.asked} == {"/v1/subjects/lookup", "/v1/subjects/export"}
    assert all(asked.json() == {"subject": "user-7"} for asked in stand_in.asked)
