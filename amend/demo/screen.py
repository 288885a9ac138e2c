"""What the tour shows: bars while something goes on, lines of what it showed, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from amend.commands.output import printable

Bar = Callable[[float, str], None]
"""Told how far something is, 0 to 1, and a phrase."""
WIDTH = 110
"""Of sentences; a terminal may be narrower."""
COLUMNS = ("model", "what happened", "adapted", "retrained", "differ", "bound", "passes", "speed-up")


class Screen:
    """A console, with the numbers of the steps."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.steps = 0

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style), width=min(WIDTH, self.console.width))

    def quote(self, lines: Sequence[str]) -> None:
        """Of a log, each as it is."""
        for line in lines:
            self.console.print(Text(f"  {printable(line)}", "dim"), soft_wrap=True)

    def facts(self, facts: Mapping[str, str]) -> None:
        """Short names, each with a line."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in facts.items():
            grid.add_row(f"  {name}", Text(printable(text)))
        self.console.print(grid)

    def links(self, links: Mapping[str, str]) -> None:
        """As facts, but never broken: they are to be clicked, or copied."""
        width = max(map(len, links))
        for name, link in links.items():
            self.console.print(Text.assemble((f"  {name:{width}}  ", "bold"), printable(link)), soft_wrap=True)

    def head(self, title: str) -> None:
        self.steps += 1
        self.console.print()
        self.say(f"{self.steps}. {title}", "bold cyan")

    @contextmanager
    def bars(self, names: Sequence[str]) -> Iterator[list[Bar]]:
        """A bar for each name, while it lasts."""
        columns = (
            TextColumn("  {task.fields[name]}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.description}", "dim", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        )
        # without a terminal, bars would be lines that nobody asked for
        silent = not self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, expand=True, disable=silent) as progress:

            def bar(name: str) -> Bar:
                task = progress.add_task("", total=1.0, name=name)
                return lambda fraction, words: progress.update(task, completed=fraction, description=printable(words))

            yield [bar(name) for name in names]

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        table = Table(title="Adapted against a full retrain of the same data", title_style="bold")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print("", table)


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.98765), percent(0.0), percent(None)
    ('98.8 %', '0.0 %', '-')
    """
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def seconds(number: float) -> str:
    """
    >>> seconds(0.0312), seconds(2.345)
    ('0.03 s', '2.3 s')
    """
    return f"{number:.2f} s" if number < 1 else f"{number:.1f} s"
