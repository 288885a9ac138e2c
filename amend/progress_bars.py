"""The progress bar that ``wait`` shows in terminals and notebooks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amend.responses import Erasure, Job


class ProgressBar:
    """A bar on standard error, or in the output of a notebook's cell. It disappears when the work has ended."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None

    def __call__(self, found: Job | Erasure) -> None:
        """Show the state of a job or erasure."""
        if found.ended or found.state == "held":
            self.close()
            return
        if self.bar is None:
            self.open()
        share = getattr(found, "progress", None)
        text = getattr(found, "message", None) or found.state
        self.bar.update(self.task, completed=share, total=None if share is None else 1.0, description=text)

    def open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("queued", total=None)
        self.bar.start()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def is_interactive() -> bool:
    """Whether a person watches: standard error is a terminal, or this is a notebook."""
    shell = sys.modules.get("IPython")
    in_notebook = shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return in_notebook or bool(getattr(sys.stderr, "isatty", lambda: False)())
