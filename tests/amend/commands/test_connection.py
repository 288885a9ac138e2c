"""Which service a command calls, with which key, and how it tells what went wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from amend import cli
from amend.commands import connection
from amend.config import find_key, find_url
from tests.amend.commands.responses import MODEL
from tests.amend.conftest import StandIn

LIST = {"items": [], "next": None}


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMEND_URL", "AMEND_KEY", "AMEND_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AMEND_HOME", str(tmp_path))


def amend(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def test_url_is_the_given_one_else_the_port_else_8000(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_url(None) == "http://127.0.0.1:8000"
    monkeypatch.setenv("AMEND_PORT", "8123")
    assert find_url(None) == "http://127.0.0.1:8123"
    assert find_url("https://amend.example.org") == "https://amend.example.org"


HERE = "http://127.0.0.1:8000"


def test_url_and_key_come_from_the_environment(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.answer(LIST)
    monkeypatch.setenv("AMEND_URL", stand_in.url + "/")
    monkeypatch.setenv("AMEND_KEY", "amend_2_other")
    assert amend("models", "list").exit_code == 0
    assert stand_in.asked[0].path == "/v1/models"
    assert stand_in.asked[0].headers["Authorization"] == "Bearer amend_2_other"


def test_key_is_the_admin_key_of_the_home_if_none_is_given(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("amend_1_first\n")
    assert find_key(None, HERE) == "amend_1_first"
    assert find_key("amend_3_given", HERE) == "amend_3_given"


def test_admin_key_is_not_sent_to_another_machine(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("amend_1_first\n")
    result = amend("models", "list", "--url", "http://elsewhere.example")
    assert result.exit_code == 1
    assert "not sent to other hosts" in result.stderr


def test_home_is_in_the_users_home_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMEND_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".amend").mkdir()
    (tmp_path / ".amend" / "admin.key").write_text("amend_1_first\n")
    assert find_key(None, HERE) == "amend_1_first"


def test_a_missing_key_is_reported_in_one_line() -> None:
    result = amend("models", "list")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "No API key" in result.stderr
    assert "admin.key" in result.stderr


@pytest.mark.parametrize("port", ["abc", "0", "70000", "-1", "8000/v1"])
def test_an_invalid_port_is_reported_in_one_line(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMEND_PORT", port)
    result = amend("models", "list")
    assert result.exit_code == 1
    assert result.stderr == f"amend: AMEND_PORT must be a port number from 1 to 65535, not {port!r}.\n"


def test_an_invalid_address_is_reported_before_a_missing_key() -> None:
    result = amend("models", "list", "--url", "http://127.0.0.1:abc")
    assert result.exit_code == 1
    assert result.stderr.startswith("amend: Invalid address http://127.0.0.1:abc: Invalid port")


@pytest.mark.parametrize("key", ["amend_1_schlüssel", "amend_1\n_secret"])
def test_an_invalid_key_is_reported_without_showing_it(key: str, tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text(key, encoding="latin-1")
    for given in (["--key", key], []):
        result = amend("models", "list", *given)
        assert result.exit_code == 1
        assert result.stderr.startswith("amend: The API key contains characters other than printable ASCII")
        assert result.stderr.count("\n") == 1
        assert "amend_1" not in result.stderr


def test_an_unreachable_service_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", (0.0,))
    with socket.socket() as bound_but_deaf:
        bound_but_deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound_but_deaf.getsockname()[1]}"
        result = amend("models", "list", "--url", url, "--key", "k")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"Cannot reach {url}" in result.stderr


def test_a_refusal_is_one_line_with_code_detail_and_fields(stand_in: StandIn) -> None:
    errors = [{"loc": ["examples", n, "x"], "msg": "expected\n64 numbers"} for n in range(9)]
    problem = {"status": 422, "code": "example_shape_mismatch", "detail": "9 bad examples", "errors": errors}
    stand_in.answer(problem, status=422)
    result = stand_in.run("models", "show", "churn")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(
        "amend: example_shape_mismatch: 9 bad examples (examples.0.x: expected 64 numbers; examples.1.x:"
    )
    assert result.stderr.endswith("; and 4 more)\n")
    assert result.stderr.count("\n") == 1


def test_a_field_is_named_once(stand_in: StandIn) -> None:
    problem = {
        "code": "bad_dim",
        "detail": "input.dim: too small",
        "errors": [{"loc": ["input", "dim"], "msg": "too small"}],
    }
    stand_in.answer(problem, status=422)
    assert stand_in.run("models", "show", "churn").stderr == "amend: bad_dim: input.dim: too small\n"


def test_a_proxy_in_the_environment_is_not_used_for_this_machine(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    stand_in.answer(LIST)
    assert stand_in.run("models", "list").exit_code == 0


def test_json_output_is_the_response_alone(stand_in: StandIn) -> None:
    answer = {"items": [{**MODEL, "new": [1.123456789, "[bold]", "ü"]}], "next": "abc"}
    stand_in.answer(answer)
    result = stand_in.run("models", "list", "--json")
    assert json.loads(result.stdout) == answer
    assert result.stderr == ""


def test_a_list_prints_the_cursor_of_the_next_page(stand_in: StandIn) -> None:
    stand_in.answer({"items": [MODEL], "next": "abc"})
    result = stand_in.run("models", "list", "--limit", "1")
    assert stand_in.asked[0].path == "/v1/models?limit=1"
    assert "--after abc" in result.stderr
    stand_in.run("models", "list", "--after", "abc")
    assert stand_in.asked[1].path == "/v1/models?after=abc"
