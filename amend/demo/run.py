"""What ``amend demo`` does from its start to its end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from amend.client import AsyncClient
from amend.commands import output
from amend.demo.churn import ChurnTour, Day, headline
from amend.demo.screen import Screen, percent
from amend.demo.stack import NotReady, Stack
from amend.demo.steps import StepFailed
from amend.demo.timeline import Mlflow, NotShown, draw
from amend.demo.tour import DemoModel, NotScheduled, Tour
from amend.errors import ApiError, UnreachableError
from amend.up.authentication import USER
from amend.up.run import open_page

FAILED, INTERRUPTED = 1, 130
DATA = (
    "scikit-learn's 1 797 images, every fourth held out. digits-mlp reads 64 pixels; digits-linear 28 frequencies, "
    "also of each image moved by a pixel in four directions: so it has five times as many examples"
)
LEGEND = (
    "Accuracy is that on held-out images. Differ: predictions that are not the retrain's. Bound: on |w - w_retrain| / "
    "|w|; networks have none. Passes: looks at all examples, adapted / retrained. Speed-up: time of the retrain / time "
    "of the adaptation with its certificate; a busy machine moves it, and it grows with the number of examples."
)


def run(figure: Path, keep: bool, show: bool = False) -> int:
    """The whole tour; the exit code."""
    # told to stop is told to clean up
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    screen, begun = Screen(output.console()), time.monotonic()
    with Stack() as stack:
        try:
            introduce(screen, stack, figure)
            with screen.bars(["starting"]) as [bar]:
                stack.wait_until_ready(bar)
            if show:
                open_page(stack.url)
            models, day = asyncio.run(run_tour(screen, stack))
            conclude(screen, stack, figure, models, day, keep)
            screen.say(f"The tour took {time.monotonic() - begun:.0f} s.")
            screen.say(headline(day), "bold green")
            if keep:
                stay(screen, stack)
            return 0
        except KeyboardInterrupt:
            screen.say("Interrupted: everything is being stopped, and its files deleted.")
            return INTERRUPTED
        except (NotReady, StepFailed, NotShown, httpx.HTTPError, OSError) as error:
            explain(screen, stack, error)
            return FAILED


def introduce(screen: Screen, stack: Stack, figure: Path) -> None:
    screen.say("A tour of Amend: handwritten digits, odd or even, then a table of a million customers.", "bold")
    screen.facts(
        {
            "data": DATA,
            "then": "a million made-up customers, 15 columns; a day's changes, and a person who is erased",
            "installs": "nothing",
            "starts": f"amend up, with its pages and REST at {stack.url} and MLflow at {stack.mlflow_url}",
            "watch": f"the models live at {stack.url}: sign in with the key in {stack.home / 'admin.key'}",
            "writes": f"{stack.home} (database, models, logs: deleted at the end) and {figure}",
        }
    )


async def run_tour(screen: Screen, stack: Stack) -> tuple[list[DemoModel], Day]:
    async with AsyncClient(stack.url, stack.key) as client:
        tour = Tour(client, screen)
        await tour.run()
        return tour.models, await ChurnTour(client, screen).run()


def conclude(screen: Screen, stack: Stack, figure: Path, models: list[DemoModel], day: Day, keep: bool) -> None:
    """The table, the figure, and where MLflow shows it."""
    screen.table([row for model in models for row in rows_of(model)])
    screen.say(LEGEND, "dim")
    mlflow = Mlflow(stack.mlflow_url, stack.mlflow_key.read_text().strip())
    timelines = {model.name: mlflow.timeline(model.name, model.steps[-1][1]) for model in models}
    lines = {model.name: ({**timelines[model.name].lines, **model.lines()}, model.steps) for model in models}
    draw(figure, (day.title, day.seconds), lines)
    screen.links({"figure": str(figure), **{f"MLflow: {name}": found.page for name, found in timelines.items()}})
    if not keep:
        screen.say(
            "MLflow ends with the tour: KEEP=1 make demo, or amend demo --keep, leaves its pages there to look at."
        )


def rows_of(model: DemoModel) -> Iterator[list[str]]:
    """The rows of the table that a model has."""
    for what, position in model.steps:
        if position in model.comparisons:
            adapted, found = model.comparisons[position]
            certificate, accuracy, cost = adapted.certificate, found.accuracy, found.cost
            assert accuracy is not None
            assert cost is not None
            bounded = certificate is not None and certificate.kind == "bound"
            yield [
                model.name,
                what,
                percent(accuracy.adapted),
                percent(accuracy.retrained),
                percent(found.disagreement),
                f"{certificate.relative:.1e}" if certificate is not None and bounded else "-",
                f"{cost.adapted.data_passes:.0f} / {cost.retrained.data_passes:.0f}",
                f"{found.speedup:.1f} x",
            ]


def stay(screen: Screen, stack: Stack) -> None:
    """Leave everything running until Ctrl-C."""
    mlflow = f"user {USER}, password in {stack.mlflow_key}"
    key = str(stack.home / "admin.key")
    screen.links({"pages": stack.url, "REST": f"{stack.url}/docs", "key": key, "MLflow": mlflow, "stop": "Ctrl-C"})
    try:
        while True:
            stack.check_running()
            time.sleep(1)
    except KeyboardInterrupt:
        screen.say("Everything is being stopped, and its files deleted.")


def explain(screen: Screen, stack: Stack, error: Exception) -> None:
    """Which step failed, why, and what the log of the part behind it says last."""
    step, cause = (f"«{error}»", error.__cause__) if isinstance(error, StepFailed) else ("the tour", error)
    part = failing_process(stack, cause)
    screen.say(f"{step} failed: {str(cause) or type(cause).__name__}", "bold red")
    screen.say(f"The last lines of the log of {part}:")
    screen.quote(stack.last_lines(part))
    stack.keep_files = True
    screen.say(f"All logs are kept in {stack.home}")


def failing_process(stack: Stack, error: BaseException | None) -> str:
    """Whose log tells most about an error."""
    if isinstance(error, NotReady):
        return error.part
    if not stack.is_running:
        return "up"
    if isinstance(error, ApiError | UnreachableError):
        return "service"
    if isinstance(error, NotScheduled):
        return "scheduler"
    return "mlflow" if isinstance(error, httpx.HTTPError | NotShown) else "worker"
