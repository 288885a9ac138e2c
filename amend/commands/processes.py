"""Commands that start other parts of Amend as processes: the service, workers, migrations, benchmarks.

Those parts are in the repository and in the image, but not in the wheel; the commands report if they are missing.
Options of benchmarks are passed on and parsed by the benchmarks.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from amend.commands.connection import fail

PARTS = ("core", "service", "worker", "migrations", "bench")
# Two packages of the extra `server`, which are rarely installed otherwise.
PACKAGES = ("torch", "mlflow")
# `--help` is passed on, too: only the benchmark knows its options.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

BENCHMARKS = {
    "engine": "Compare adaptations with no update, warm refits and full retrains: precision and CPU time.",
    "paper": "Reproduce the tasks of the K-priors paper: accuracy, distance to a retrain, and cost.",
    "scale": "Measure the time of one adaptation as the number of past examples grows.",
    "ingest": "Measure how many examples per second the service stores, by request format.",
    "turnaround": "Measure the time from the response to a removal to the new champion.",
    "sharing": "Measure the time of a pass over all examples, in one process and on Ray.",
    "erasure": "Measure the time of erasures, from the request to the receipt.",
}

bench = typer.Typer(help="Run benchmarks. Each lists its options with --help.", no_args_is_help=True)


def run_benchmark(context: typer.Context) -> None:
    run_module("bench", str(context.info_name), *context.args)


for name, text in BENCHMARKS.items():
    bench.command(name, help=text, context_settings=PASS_THROUGH)(run_benchmark)

Open = Annotated[bool, typer.Option("--open", help="Open the web pages in a browser once the service is ready.")]


def up(show: Open = False) -> None:
    """Run Amend on this machine until Ctrl-C: broker, MLflow, service, worker and scheduler.

    All files are in $AMEND_HOME (~/.amend). A process that dies is restarted. Ports: AMEND_PORT (8000) and
    AMEND_MLFLOW_PORT (5000). If AMEND_DATABASE_URL, AMEND_BROKER_URL or AMEND_MLFLOW_URL is set, that server is used.

    Example: AMEND_HOME=./data AMEND_PORT=8080 amend up
    """
    require_server()
    from amend.up.run import run  # needs a Unix; the other commands do not

    raise typer.Exit(run(show))


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running until Ctrl-C.")] = False,
    figure: Annotated[Path, typer.Option("--figure", help="File for the chart of the results.")] = Path(
        "amend-demo.png"
    ),
    show: Open = False,
) -> None:
    """Run a demonstration of two to three minutes: two digits models and a table of a million rows adapt and forget.

    It starts its own Amend in a temporary folder and leaves only the chart behind.

    Example: amend demo --keep
    """
    require_server()
    from amend.demo.run import run  # needs scikit-learn, which takes a while to load

    raise typer.Exit(run(figure, keep, show))


def service() -> None:
    """Run the REST service until Ctrl-C. Settings are environment variables such as AMEND_PORT, AMEND_DATABASE_URL.

    Example: AMEND_PORT=8080 amend service
    """
    run_module("service")


def worker() -> None:
    """Run a worker until Ctrl-C. It executes jobs and publishes to MLflow. AMEND_QUEUES selects queues.

    Example: AMEND_WORKER_PROCESSES=4 amend worker
    """
    run_module("worker")


def scheduler() -> None:
    """Run the scheduler until Ctrl-C. It starts due work and recovers lost jobs. Several can run at once.

    Example: amend scheduler
    """
    run_module("worker.scheduler")


def broker() -> None:
    """Run the embedded broker (Valkey), which passes jobs to the workers if AMEND_BROKER_URL is not set.

    Example: amend broker
    """
    run_module("worker.broker")


def mlflow() -> None:
    """Run MLflow until Ctrl-C, protected by a password: user amend, password AMEND_MLFLOW_PASSWORD.

    Other settings are those of `mlflow server`: MLFLOW_HOST, MLFLOW_PORT, MLFLOW_BACKEND_STORE_URI and so on.

    Example: MLFLOW_BACKEND_STORE_URI=sqlite:///mlflow.db amend mlflow
    """
    run_module("amend.up.mlflow_server")


def migrate() -> None:
    """Migrate the database to this version of Amend. For a new database, create the key $AMEND_HOME/admin.key.

    Example: amend migrate
    """
    run_module("migrations")


def run_module(module: str, *arguments: str) -> NoReturn:
    """Replace this process with ``python -m module arguments...``, so that signals reach it directly."""
    require_server()
    # -P: otherwise a folder of the same name in the current directory would be run instead.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


def require_server() -> None:
    """Exit with an explanation if only the client is installed."""
    missing = [name for name in (*PARTS, *PACKAGES) if importlib.util.find_spec(name) is None]
    if missing:
        found = f"This command requires Amend's server packages ({', '.join(missing)} not found)."
        fail(f"{found} Run it from the repository after `make setup`, or in the container image.")
