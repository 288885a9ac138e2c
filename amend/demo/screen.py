"""The demo's output: progress bars, results of each step, and the table at the end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from amend.commands.output import printable

Bar = Callable[[float, str], None]
"""Takes the progress, from 0 to 1, and a description."""
WIDTH = 110
"""Maximum width of sentences."""


class Screen:
    """A console that numbers the steps."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.steps = 0

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style), width=min(WIDTH, self.console.width))

    def quote(self, lines: Sequence[str]) -> None:
        """Print lines of a log unchanged."""
        for line in lines:
            self.console.print(Text(f"  {printable(line)}", "dim"), soft_wrap=True)

    def facts(self, facts: Mapping[str, str]) -> None:
        """Print names with a line of text for each."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in facts.items():
            grid.add_row(f"  {name}", Text(printable(text)))
        self.console.print(grid)

    def links(self, links: Mapping[str, str]) -> None:
        """As `facts`, but without line breaks, so that links can be clicked or copied."""
        width = max(map(len, links))
        for name, link in links.items():
            self.console.print(Text.assemble((f"  {name:{width}}  ", "bold"), printable(link)), soft_wrap=True)

    def head(self, title: str) -> None:
        self.steps += 1
        self.console.print()
        self.say(f"{self.steps}. {title}", "bold cyan")

    @contextmanager
    def bars(self, names: Sequence[str]) -> Iterator[list[Bar]]:
        """Show a progress bar for each name during the block."""
        columns = (
            TextColumn("  {task.fields[name]}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.description}", "dim", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        )
        # Without a terminal, each update would be printed as a line.
        silent = not self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, expand=True, disable=silent) as progress:

            def bar(name: str) -> Bar:
                task = progress.add_task("", total=1.0, name=name)
                return lambda fraction, words: progress.update(task, completed=fraction, description=printable(words))

            yield [bar(name) for name in names]

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; the first column is left-aligned."""
        table = Table(title=title, title_style="bold")
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i else "left")
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


def small_percent(fraction: float) -> str:
    """
    >>> small_percent(0.00123), small_percent(3e-8)
    ('0.12 %', '0.01 %')
    """
    return f"{max(100 * fraction, 0.01):.2g} %"


def thousands(number: int) -> str:
    """
    >>> thousands(1_000_000)
    '1 000 000'
    """
    return f"{number:,}".replace(",", " ")
