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
# `--help` is passed on as well: only the benchmark knows its options.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

BENCHMARKS = {
    "engine": "Compare adaptations with no update, warm refits and full retrains: precision and CPU time.",
    "paper": "Reproduce the tasks of the K-priors paper: accuracy, distance to a retrain, and cost.",
    "scale": "Measure the time of one adaptation as the number of past examples grows.",
    "ingest": "Measure how many examples per second the service stores, by request format.",
    "frames": "Compare predictions for a frame through the client with scikit-learn.",
    "turnaround": "Measure the time from the response to a removal to the new champion.",
    "checks": "Measure what the promotion gate and the other checks of model quality add to the turnaround.",
    "analyses": "Compare analyses with brute force: leave-one-out, cross-validation, previews, labelling.",
    "sharing": "Measure the time of a pass over all examples, in one process and on Ray.",
    "gate": "Count how often the promotion gate rejects ordinary batches.",
    "pages": "Measure how long the web pages of models with a long history take to load.",
    "audit": "Count how often the audit of a network rejects faked unlearning, and how often honest results.",
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
    """Run a demonstration of two to three minutes: a model of a million customers adapts and forgets.

    It starts its own Amend in a temporary folder and leaves only the chart behind.

    Example: amend demo --keep
    """
    require_server()
    from amend.demo.run import run  # needs scikit-learn, which takes a while to load

    raise typer.Exit(run(figure, keep, show))


def prove(
    folder: Annotated[Path, typer.Option("--report", help="Folder for the report.")] = Path("amend-twins"),
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random history.")] = 0,
    events: Annotated[int, typer.Option("--events", min=1, help="Number of random events for each model.")] = 9,
    models: Annotated[list[str] | None, typer.Option("--model", help="Only this model; may be repeated.")] = None,
) -> None:
    """Run two services whose erased examples differ through the same history, and compare everything they store.

    Exits with status 1 if anything differs that is not in the declared list of exceptions. Takes about twenty minutes.

    Example: amend prove --seed 7 --report twins
    """
    require_server()
    from amend.prove.history import specs
    from amend.prove.run import run

    if unknown := set(models or ()) - specs().keys():
        raise typer.BadParameter(f"Unknown model {min(unknown)}. The models are: {', '.join(specs())}.")
    raise typer.Exit(run(folder, seed, events, tuple(models or ())))


def service() -> None:
    """Run the REST service until Ctrl-C. Settings are environment variables such as AMEND_PORT and AMEND_DATABASE_URL.

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

    The variables of `mlflow server` configure the rest: MLFLOW_HOST, MLFLOW_PORT, MLFLOW_BACKEND_STORE_URI and so on.

    Example: MLFLOW_BACKEND_STORE_URI=sqlite:///mlflow.db amend mlflow
    """
    run_module("amend.up.mlflow_server")


def migrate() -> None:
    """Migrate the database to this version of Amend. For a new database, create the key $AMEND_HOME/admin.key.

    Example: amend migrate
    """
    run_module("migrations")


def backup(folder: Annotated[Path, typer.Argument(help="New or empty folder for the backup.")]) -> None:
    """Back up the database and the files of the register. All processes may keep running.

    PostgreSQL requires pg_dump on the PATH. Keep the secret key and the signing key elsewhere: they are not included.

    Example: amend backup /backups/2026-03-01
    """
    run_module("migrations.backup", "save", str(folder))


def restore(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup.")],
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Restore a backup that is older than AMEND_BACKUP_RETENTION.")
    ] = False,
) -> None:
    """Replace the database with a backup, and repeat all later actions that concern people. Stop all processes first.

    Erasures, requests, decisions, removals and corrections since the backup are repeated from the store, which stays as
    it is. PostgreSQL requires pg_restore on the PATH.

    Example: amend restore /backups/2026-03-01
    """
    require_server()
    from amend.up.restore import restore as run_restore  # needs a Unix; the other commands do not

    raise typer.Exit(run_restore(folder, lossy))


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
