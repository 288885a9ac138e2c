"""The ``amend demo`` command."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from amend.client import AsyncClient
from amend.commands import output
from amend.demo.chart import draw
from amend.demo.churn_tour import ChurnTour, Day, headline
from amend.demo.digits_tour import DemoModel, NotScheduled, Tour
from amend.demo.mlflow_timeline import Mlflow, NotShown
from amend.demo.screen import Screen, percent
from amend.demo.stack import NotReady, Stack
from amend.demo.steps import StepFailed
from amend.errors import ApiError, UnreachableError
from amend.up.mlflow_authentication import USER
from amend.up.run import open_page

FAILED, INTERRUPTED = 1, 130
DATA = (
    "scikit-learn's 1 797 digits, every fourth in the holdout. digits-mlp uses the 64 pixels; digits-linear uses 28 "
    "frequencies of each image and of four shifted copies, so it has five times as many examples"
)
LEGEND = (
    "Adapted, retrained: holdout accuracy. Differ: share of predictions that differ from the retrain's. Bound: on "
    "|w - w_retrain| / |w|; not available for networks. Passes: over all examples, adapted / retrained. Speed-up: time "
    "of the retrain / time of the adaptation with its certificate; it grows with the number of examples."
)


def run(figure: Path, keep: bool, show: bool = False) -> int:
    """Run the demo and return the exit status."""
    # Handled like Ctrl-C, so that everything is cleaned up.
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
            screen.say(f"The demo took {time.monotonic() - begun:.0f} s.")
            screen.say(headline(day), "bold green")
            if keep:
                stay(screen, stack)
            return 0
        except KeyboardInterrupt:
            screen.say("Interrupted. Stopping all processes and deleting their files.")
            return INTERRUPTED
        except (NotReady, StepFailed, NotShown, httpx.HTTPError, OSError) as error:
            explain(screen, stack, error)
            return FAILED


def introduce(screen: Screen, stack: Stack, figure: Path) -> None:
    screen.say("Amend demo: handwritten digits, odd or even, then a table of a million customers.", "bold")
    screen.facts(
        {
            "data": DATA,
            "then": "a million synthetic customers, 15 columns; one day's changes, and the erasure of a customer",
            "installs": "nothing",
            "starts": f"amend up, with web pages and REST API at {stack.url} and MLflow at {stack.mlflow_url}",
            "watch": f"the models at {stack.url}; sign in with the key in {stack.home / 'admin.key'}",
            "writes": f"{stack.home} (database, models and logs; deleted at the end) and {figure}",
        }
    )


async def run_tour(screen: Screen, stack: Stack) -> tuple[list[DemoModel], Day]:
    async with AsyncClient(stack.url, stack.key) as client:
        tour = Tour(client, screen)
        await tour.run()
        return tour.models, await ChurnTour(client, screen).run()


def conclude(screen: Screen, stack: Stack, figure: Path, models: list[DemoModel], day: Day, keep: bool) -> None:
    """Print the results, write the chart, and print links to MLflow."""
    screen.table([row for model in models for row in rows_of(model)])
    screen.say(LEGEND, "dim")
    mlflow = Mlflow(stack.mlflow_url, stack.mlflow_key.read_text().strip())
    timelines = {model.name: mlflow.timeline(model.name, model.steps[-1][1]) for model in models}
    lines = {model.name: ({**timelines[model.name].lines, **model.lines()}, model.steps) for model in models}
    draw(figure, (day.title, day.seconds), lines)
    screen.links({"chart": str(figure), **{f"MLflow: {name}": found.page for name, found in timelines.items()}})
    if not keep:
        screen.say("MLflow stops with the demo. To keep it running, use amend demo --keep or KEEP=1 make demo.")


def rows_of(model: DemoModel) -> Iterator[list[str]]:
    """The rows of a model in the table of results."""
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
    """Keep everything running until Ctrl-C."""
    mlflow = f"user {USER}, password in {stack.mlflow_key}"
    key = str(stack.home / "admin.key")
    screen.links({"pages": stack.url, "REST": f"{stack.url}/docs", "key": key, "MLflow": mlflow, "stop": "Ctrl-C"})
    try:
        while True:
            stack.check_running()
            time.sleep(1)
    except KeyboardInterrupt:
        screen.say("Stopping all processes and deleting their files.")


def explain(screen: Screen, stack: Stack, error: Exception) -> None:
    """Print the failed step, the cause, and the end of the log of the process that is responsible."""
    step, cause = (f'Step "{error}"', error.__cause__) if isinstance(error, StepFailed) else ("The demo", error)
    part = failing_process(stack, cause)
    screen.say(f"{step} failed: {str(cause) or type(cause).__name__}", "bold red")
    screen.say(f"Last lines of the log of {part}:")
    screen.quote(stack.last_lines(part))
    stack.keep_files = True
    screen.say(f"All logs are in {stack.home}")


def failing_process(stack: Stack, error: BaseException | None) -> str:
    """The process whose log most likely explains an error."""
    if isinstance(error, NotReady):
        return error.part
    if not stack.is_running:
        return "up"
    if isinstance(error, ApiError | UnreachableError):
        return "service"
    if isinstance(error, NotScheduled):
        return "scheduler"
    return "mlflow" if isinstance(error, httpx.HTTPError | NotShown) else "worker"
