"""Prints responses: tables and lists of values for people, JSON for programs.

Responses go to standard output; notes, prompts and progress go to standard error, so that a pipe receives only the
response.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeGuard, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from amend.commands import table_layout

T = TypeVar("T")
# Heading -> function that returns an item's value.
Columns = Mapping[str, Callable[[T], object]]

# If the output is not a terminal, lines are not folded: a program may read them.
PIPE_WIDTH = 10_000
MAX_DETAIL_LINES = 3
"""Maximum lines of one value in a terminal."""


def console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)


def print_json(response: object) -> None:
    print(json.dumps(response, indent=2, ensure_ascii=False))


def note(sentence: str) -> None:
    print(printable(sentence), file=sys.stderr)


def print_table(items: Sequence[T], columns: Columns[T]) -> None:
    if not items:
        note("No items.")
        return
    screen = console()
    cells = {name: [make_cell(value_of(item)) for item in items] for name, value_of in columns.items()}
    left_out = table_layout.narrow(cells, screen.width)
    table = Table(box=None, pad_edge=False, padding=(0, table_layout.GAP, 0, 0), header_style="bold")
    for heading, width in table_layout.allot_widths(cells, screen.width).items():
        table.add_column(heading, overflow="fold", width=width)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    screen.print(table)
    if left_out:
        note(f"Columns not shown: {', '.join(left_out)}. Use --json to see all.")


def print_details(response: Mapping[str, object]) -> None:
    """Print one value per line. In a terminal, long values are truncated."""
    screen = console()
    cells = [(Text(printable(name)), make_cell(value)) for name, value in flatten(response).items()]
    names = min(max((name.cell_len for name, _ in cells), default=0), screen.width // 2)
    room = MAX_DETAIL_LINES * (screen.width - names - table_layout.GAP)
    table = Table(box=None, pad_edge=False, padding=(0, table_layout.GAP, 0, 0), show_header=False)
    table.add_column(style="bold", overflow="fold", width=names)
    table.add_column(overflow="fold")
    cut = screen.is_terminal and any(cell.cell_len > room for _, cell in cells)
    for name, cell in cells:
        if cut:
            cell.truncate(room, overflow="ellipsis")
        table.add_row(name, cell)
    screen.print(table)
    if cut:
        note("Long values are truncated. Use --json to see all.")


def format_time(time: datetime | None) -> str | None:
    """A time to the minute.

    >>> format_time(datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC))
    '2026-03-01 12:30Z'
    """
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}Z" if time else None


def flatten(value: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested objects as dotted names.

    >>> flatten({"policy": {"holdout": 0.1, "retrain": {"every": "24h"}}})
    {'policy.holdout': 0.1, 'policy.retrain.every': '24h'}
    >>> flatten({"columns": [{"name": "age", "type": "number"}, {"name": "plan", "type": "category", "other": True}]})
    {'columns.age': 'number', 'columns.plan': 'category, other yes'}
    """
    flat: dict[str, object] = {}
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            flat |= flatten(inner, f"{prefix}{name}.")
        elif are_columns(inner):
            flat |= {f"{prefix}{name}.{one['name']}": describe_column(one) for one in inner}
        else:
            flat[prefix + name] = inner
    return flat


def are_columns(value: object) -> TypeGuard[list[dict[str, object]]]:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(one, dict) and {"name", "type"} <= {*one} for one in value)


def describe_column(column: Mapping[str, object]) -> str:
    """A column of a model's input in one line."""
    rest = [f"{name} {format_value(value)}" for name, value in column.items() if name not in ("name", "type")]
    return ", ".join([str(column["type"]), *rest])


def make_cell(value: object) -> Text:
    # Text, because rich would interpret brackets in a string as markup.
    return Text(printable(format_value(value)))


def format_value(value: object) -> str:
    """
    >>> [format_value(value) for value in (None, True, 0.123456789, 12, "a", [1, "b"], {"a": [0.123456789, 2.0]})]
    ['-', 'yes', '0.1235', '12', 'a', '[1, "b"]', '{"a": [0.1235, 2.0]}']
    """
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case str():
            return value
        case _:
            return json.dumps(round_within(value), ensure_ascii=False)


def round_within(value: object) -> object:
    """Round the numbers in lists and objects as `format_value` does."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case list() | tuple():
            return [round_within(inner) for inner in value]
        case dict():
            return {name: round_within(inner) for name, inner in value.items()}
        case _:
            return value


def printable(text: str) -> str:
    """Replace control characters: an id in a response must not be able to control the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
