"""Tables: nothing is cut, nothing is taken for markup, nothing can steer the terminal."""

from __future__ import annotations

import sys
from operator import itemgetter

import pytest
from msgspec import convert

from amend.commands import jobs, output
from amend.responses import Job
from tests.amend.commands.responses import job


def test_a_pipe_gets_every_value_whole_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    items = [(long, None), ("b", {"z": 1})]
    output.print_table(items, {"id": lambda item: item[0], "y": lambda item: item[1]})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["id", "y"], [long, "-"], ["b", '{"z":', "1}"]]


def test_an_id_is_on_one_line_in_a_narrow_terminal_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", 80)
    id = "4e1d7a90-8c35-4b62-a7f1-93d05c2be684"
    words = {name: f"{name} " * 5 for name in ("model", "kind", "state", "progress", "created")}
    output.print_table([{"id": id, **words}], {name: itemgetter(name) for name in ("id", *words)})
    assert f"\n{id} " in capsys.readouterr().out


def test_brackets_and_control_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_details({"id": "[red]a[/red]", "nested": {"evil": "\x1b[2Jb\n"}})
    printed = capsys.readouterr().out
    assert "[red]a[/red]" in printed
    assert "nested.evil" in printed
    assert "\x1b" not in printed
    assert printed.count("\n") == 2


LONG = [f"value-{i}" for i in range(300)]
COLUMNS = [{"name": "age", "type": "number"}, {"name": "plan", "type": "category", "values": LONG, "other": True}]
DETAILS = {"name": "churn", "input": {"kind": "table", "columns": COLUMNS}, "policy": {"a" * 50: None}}


def test_details_stay_within_the_width_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # whose width is 80, and which has no bold letters
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_details(DETAILS)
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["input.columns.age", "number"] in [line.split() for line in lines]
    assert len(lines) < 12
    assert "value-3" in captured.out
    assert "--json" in captured.err


def test_a_pipe_gets_details_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_details(DETAILS)
    captured = capsys.readouterr()
    assert "value-299" in captured.out
    assert len(captured.out.splitlines()) == 5
    assert captured.err == ""


def test_an_empty_list_prints_a_note_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table([], {"id": str})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


ID = "4e1d7a90-8c35-4b62-a7f1-93d05c2be684"


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160])
def test_no_word_is_broken_however_narrow_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", columns)
    item = convert(job("succeeded", id=ID, model="default-risk", version=12), Job)
    output.print_table([item] * 2, jobs.COLUMNS)
    captured = capsys.readouterr()
    heading, *rows = [line.split() for line in captured.out.splitlines()]
    assert heading[:2] == ["id", "model"]
    assert rows[0] == rows[1]
    assert rows[0][0] == ID
    assert all(len(line) <= columns for line in captured.out.splitlines())
    assert ("progress" in heading) == (columns >= 100)
    left_out = [name for name in jobs.COLUMNS if name not in heading]
    assert captured.err == (f"Columns not shown: {', '.join(left_out)}. Use --json to see all.\n" if left_out else "")


def test_ids_are_shortened_only_where_nothing_else_helps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", 40)
    output.print_table([convert(job("succeeded", id=ID), Job)], jobs.COLUMNS)
    assert capsys.readouterr().out.splitlines()[1].split() == ["4e1d7a90…", "churn", "adapt"]


def test_sentences_go_on_below(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", 40)
    sentence = "the solver did not come to an end within its steps"
    output.print_table([("churn", sentence)], {"model": itemgetter(0), "error": itemgetter(1)})
    assert capsys.readouterr().out.split()[2:] == ["churn", *sentence.split()]
