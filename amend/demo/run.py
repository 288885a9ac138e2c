"""The ``amend demo`` command."""

import asyncio
import signal
import time
from pathlib import Path

import httpx

from amend.client import AsyncClient
from amend.commands import output
from amend.demo import customers
from amend.demo.chart import draw
from amend.demo.churn_tour import NAME, ChurnTour, Story
from amend.demo.mlflow_timeline import Mlflow, NotShown
from amend.demo.screen import Screen, seconds, small_percent, thousands
from amend.demo.stack import NotReady, Stack
from amend.demo.steps import Measured, StepFailed
from amend.errors import ApiError, UnreachableError
from amend.up.mlflow_authentication import USER
from amend.up.run import open_page

FAILED, INTERRUPTED = 1, 130
COLUMNS = ("change", "Amend", "passes", "bound", "retrain", "refit")
LEGEND = (
    "Amend: time from the request to the result, as the client sees it; for the week, the median day. Passes: over all "
    "rows. Bound: on |w - w_retrain| / |w|. Retrain, refit: how many times longer the full retrain takes, and, for a "
    "day's changes, scikit-learn's warm refit; below 1, it is faster. The saving is largest where no pass is needed. "
    "Networks are not part of the demo: a retrain of one that is small enough for it is about as fast as an adaptation."
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
            story = asyncio.run(run_tour(screen, stack))
            conclude(screen, stack, figure, story)
            if not keep:
                screen.say("MLflow stops with the demo. To keep it running, use amend demo --keep or KEEP=1 make demo.")
            screen.say(f"The demo took {time.monotonic() - begun:.0f} s.")
            screen.say(headline(story), "bold green")
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
    screen.say(
        f"Amend demo: a model of {thousands(customers.COUNT)} customers goes through every kind of change.", "bold"
    )
    screen.facts(
        {
            "data": f"{thousands(customers.COUNT)} synthetic customers of a telephone company, 15 columns",
            "installs": "nothing",
            "starts": f"amend up, with web pages and REST API at {stack.url} and MLflow at {stack.mlflow_url}",
            "watch": f"the models at {stack.url}; sign in with the key in {stack.home / 'admin.key'}",
            "writes": f"{stack.home} (database, models and logs; deleted at the end) and {figure}",
        }
    )


async def run_tour(screen: Screen, stack: Stack) -> Story:
    async with AsyncClient(stack.url, stack.key) as client:
        return await ChurnTour(client, screen, stack.home).run()


def conclude(screen: Screen, stack: Stack, figure: Path, story: Story) -> None:
    """Print the results, write the chart, and print the link to MLflow."""
    title = f"A model of {thousands(customers.COUNT)} customers"
    screen.table(title, COLUMNS, [row_of(item, story) for item in story.measured])
    screen.say(LEGEND, "dim")
    draw(figure, story, title)
    mlflow = Mlflow(stack.mlflow_url, stack.mlflow_key.read_text().strip())
    screen.links({"chart": str(figure), "MLflow": mlflow.timeline(NAME, story.position).page})


def row_of(item: Measured, story: Story) -> list[str]:
    """The row of a change in the table of results."""
    assert story.retrain is not None
    assert story.refit is not None
    return [
        item.what,
        seconds(item.seconds),
        "-" if item.passes is None else f"{item.passes:.0f}",
        "-" if item.bound is None else small_percent(item.bound),
        f"{story.retrain.seconds / item.seconds:.1f} x",
        f"{story.refit.seconds / item.seconds:.1f} x" if item is story.measured[0] else "-",
    ]


def headline(story: Story) -> str:
    """The summary at the end of the demo."""
    day, last = story.measured[0], story.week[-1]
    assert story.retrain is not None
    assert story.refit is not None
    assert last.frozen is not None
    changes = thousands(customers.daily_changes())
    better = f"{100 * (last.champion['accuracy'] or 0):.0f} % instead of {100 * (last.frozen['accuracy'] or 0):.0f} %"
    return (
        f"{changes} changes a day to a model of {thousands(customers.COUNT)} customers: adapted in "
        f"{seconds(day.seconds)}; a warm refit takes {seconds(story.refit.seconds)}, a full retrain "
        f"{seconds(story.retrain.seconds)}. On the last day, {better} of the new customers were predicted correctly."
    )


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
    return "mlflow" if isinstance(error, httpx.HTTPError | NotShown) else "worker"
