"""Commands that start another part of Amend as a process: the service, workers, migrations, benchmarks.

Those parts are in the repository and in the image, not in the wheel: where they are missing, a command says so.
Benchmarks define their options where they are: the command hands over what it was given.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from amend.commands.connection import fail

PARTS = ("core", "service", "worker", "migrations", "bench")
# Two of the packages of the extra `server`: without it, neither is there as a rule.
PACKAGES = ("torch", "mlflow")
# `--help` is not ours to answer either: only the benchmark knows its options.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

bench = typer.Typer(
    help="Measure Amend against full retraining. Each benchmark lists its options with --help.",
    no_args_is_help=True,
)


@bench.command(context_settings=PASS_THROUGH)
def engine(context: typer.Context) -> None:
    """Set adaptations beside doing nothing, refits from the old weights, and retrains: precision and CPU time."""
    run_module("bench", "engine", *context.args)


@bench.command(context_settings=PASS_THROUGH)
def paper(context: typer.Context) -> None:
    """Repeat the tasks of the K-priors paper: accuracy, distance to a retrain, and cost."""
    run_module("bench", "paper", *context.args)


@bench.command(context_settings=PASS_THROUGH)
def scale(context: typer.Context) -> None:
    """Time one adaptation as the number of past examples grows."""
    run_module("bench", "scale", *context.args)


@bench.command(context_settings=PASS_THROUGH)
def ingest(context: typer.Context) -> None:
    """Count the examples a second that the service takes, by format of the batch."""
    run_module("bench", "ingest", *context.args)


@bench.command(context_settings=PASS_THROUGH)
def turnaround(context: typer.Context) -> None:
    """Time a removal from its answer to the champion without it."""
    run_module("bench", "turnaround", *context.args)


@bench.command(context_settings=PASS_THROUGH)
def sharing(context: typer.Context) -> None:
    """Time a pass over all examples, in one process and on Ray."""
    run_module("bench", "sharing", *context.args)


@bench.command(context_settings=PASS_THROUGH)
def erasure(context: typer.Context) -> None:
    """Time erasures from the request to the receipt."""
    run_module("bench", "erasure", *context.args)


Open = Annotated[bool, typer.Option("--open", help="Open the first page in a browser once it is there.")]


def up(show: Open = False) -> None:
    """Run all of Amend on this machine until Ctrl-C: broker, MLflow, service, worker, scheduler.

    Everything it writes is in $AMEND_HOME (~/.amend); a part that dies is started again. Ports: AMEND_PORT (8000) and
    AMEND_MLFLOW_PORT (5000). What AMEND_DATABASE_URL, AMEND_BROKER_URL or AMEND_MLFLOW_URL names is used, not started.

    Example: AMEND_HOME=./data AMEND_PORT=8080 amend up
    """
    require_server()
    from amend.up.run import run  # needs a Unix; the other commands do not

    raise typer.Exit(run(show))


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    figure: Annotated[Path, typer.Option("--figure", help="Where to write the picture of the result.")] = Path(
        "amend-demo.png"
    ),
    show: Open = False,
) -> None:
    """A finished tour in two or three minutes: two models of digits, and a table of a million rows, change and forget.

    It starts a whole Amend of its own in a temporary folder, and leaves nothing behind but the picture.

    Example: amend demo --keep
    """
    require_server()
    from amend.demo.run import run  # needs scikit-learn, which takes a while to load

    raise typer.Exit(run(figure, keep, show))


def service() -> None:
    """Serve the REST API until Ctrl-C. Settings come from the environment: AMEND_PORT, AMEND_DATABASE_URL ...

    Example: AMEND_PORT=8080 amend service
    """
    run_module("service")


def worker() -> None:
    """Run jobs until Ctrl-C: adaptations, retrains, and what MLflow is told. AMEND_QUEUES picks some of them.

    Example: AMEND_WORKER_PROCESSES=4 amend worker
    """
    run_module("worker")


def scheduler() -> None:
    """See to what is due by the models' policies, and to jobs that were lost, until Ctrl-C. Two of them do no harm.

    Example: amend scheduler
    """
    run_module("worker.scheduler")


def broker() -> None:
    """Carry jobs from the service to the workers, where AMEND_BROKER_URL names no Redis: an embedded Valkey.

    Example: amend broker
    """
    run_module("worker.broker")


def mlflow() -> None:
    """Serve MLflow until Ctrl-C, to those who know AMEND_MLFLOW_PASSWORD; the user name is amend.

    All else is as `mlflow server` reads it from the environment: MLFLOW_HOST, MLFLOW_PORT, MLFLOW_BACKEND_STORE_URI ...

    Example: MLFLOW_BACKEND_STORE_URI=sqlite:///mlflow.db amend mlflow
    """
    run_module("amend.up.tracking")


def migrate() -> None:
    """Bring the database to this version of Amend; a new one gets its first key, in $AMEND_HOME/admin.key.

    Example: amend migrate
    """
    run_module("migrations")


def run_module(module: str, *arguments: str) -> NoReturn:
    """Become ``python -m module arguments...``: signals reach it, and nothing is left when it ends."""
    require_server()
    # -P: without it, a folder named like the module in the user's directory would be run instead.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


def require_server() -> None:
    """End with what is missing, and how to get it, where only the client is installed."""
    missing = [name for name in (*PARTS, *PACKAGES) if importlib.util.find_spec(name) is None]
    if missing:
        found = f"this command needs Amend's server, and there is no {', '.join(missing)} here"
        fail(f"{found}: run it from Amend's repository after `make setup`, or in its image")
